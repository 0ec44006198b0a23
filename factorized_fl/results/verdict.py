"""Did federation help this client? Its accuracy against its own Stand-Alone model's, with the tests' uncertainty."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from factorized_fl.results.rundir import Record

_SURE = 2.0  # standard errors


@dataclass(frozen=True)
class Verdict:
    """One client's difference over all seeds."""

    client: int
    domain: str
    alone: float
    together: float
    error: float  # standard error of the difference from the sizes of the test sets

    @property
    def difference(self) -> float:
        """Accuracy won."""
        return self.together - self.alone

    @property
    def word(self) -> str:
        """Plainly: helped, harmed, or no difference that these tests could show."""
        if abs(self.difference) <= _SURE * self.error:
            return "no difference"
        return "helped" if self.difference > 0 else "harmed"


def diverged(record: Record) -> bool:
    """Whether a result, of the metrics or of a summary, has no finite loss; older summaries do not say."""
    return record["accuracy"] is not None and record.get("loss", 0.0) is None


def divergence_line(clients: Sequence[int]) -> str:
    """In words, clients counted from 0."""
    return f"Training diverged for client {', '.join(str(k + 1) for k in clients)}: a smaller lr may help."


def other_images(ours: Sequence[Record], theirs: Sequence[Record]) -> bool:
    """Whether two runs' clients, as clients.json has them, hold different images, as far as both say."""
    marks = ((one.get("images"), other.get("images")) for one, other in zip(ours, theirs, strict=False))
    return any(one and other and one != other for one, other in marks)


def verdicts(runs: Sequence[Record], baselines: Sequence[Record]) -> list[Verdict]:
    """One verdict per client from summaries of runs and of Stand-Alone runs, seed by seed.

    Both models are tested on the same images; their errors are taken as independent, which overstates the
    uncertainty and so never declares too much.
    """
    pairs: dict[int, list[tuple[Record, Record]]] = {}
    for run, baseline in zip(runs, baselines, strict=True):
        alone = {client["client"]: client for client in baseline["clients"]}
        for client in run["clients"]:
            if client["client"] in alone:
                pairs.setdefault(client["client"], []).append((client, alone[client["client"]]))
    return [
        Verdict(
            client=client,
            domain=found[0][0]["domain"],
            alone=statistics.fmean(base["accuracy"] for _, base in found),
            together=statistics.fmean(ours["accuracy"] for ours, _ in found),
            error=math.sqrt(sum(_variance(r) for pair in found for r in pair)) / len(found),
        )
        for client, found in sorted(pairs.items())
    ]


def _variance(record: Record) -> float:
    """Of an accuracy measured on so many images; never quite zero, as no test is that sure."""
    share = (record["correct"] + 1) / (record["total"] + 2)
    return share * (1 - share) / record["total"]
