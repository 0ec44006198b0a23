"""The gains of runs over reference runs of the same clients: a difference for each client, their mean, and a verdict.

A reference is the run's control, in which every client aggregates with itself alone, or a Stand-Alone run. The numbers
are those of results/statistic.py; docs/verdict.md explains them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from factorized_fl.results.control import BASELINE
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.right import Graded, read_graded
from factorized_fl.results.schema import ACCURACY, FinalResult
from factorized_fl.results.statistic import (
    Estimate,
    PairedTest,
    Word,
    compare_paired,
    holm,
    paired_from_counts,
    paired_from_errors,
)
from factorized_fl.results.words import gap_text

CONTROL = "control"  # the name of a reference that is the run's own control


@dataclass(frozen=True)
class Verdict:
    """One client's score against that of a reference run, over all seeds."""

    client: int  # numbered from 1
    domain: str
    reference: float  # the reference's score, by default its accuracy
    accuracy: float  # the client's score
    low: float  # the ends of the 95% interval of the difference
    high: float
    p: float  # adjusted for the number of clients
    word: Word

    @property
    def difference(self) -> float:
        """Return the gain."""
        return self.accuracy - self.reference

    @property
    def margin(self) -> float:
        """Return half the length of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Effect:
    """The verdicts on all clients, and the mean difference with its 95% interval."""

    reference: str  # the method of the reference runs, or CONTROL
    seeds: int
    mean: float
    low: float
    high: float
    clients: tuple[Verdict, ...]
    metric: str = ACCURACY

    def number(self, word: Word) -> int:
        """Return the number of clients with this verdict."""
        return sum(verdict.word == word for verdict in self.clients)

    def names(self, word: Word) -> list[int]:
        """Return the clients with this verdict, numbered from 1."""
        return [verdict.client for verdict in self.clients if verdict.word == word]

    @property
    def difference(self) -> str:
        """Return the mean difference, with its interval."""
        return gap_text(self.metric, self.mean, self.low, self.high)

    def gap(self, verdict: Verdict) -> str:
        """Return a client's difference, with its interval."""
        return gap_text(self.metric, verdict.difference, verdict.low, verdict.high)

    @property
    def over(self) -> str:
        """Return the reference of the difference, as in "its control"."""
        return {CONTROL: "its control", BASELINE: "Stand-Alone"}.get(self.reference, self.reference)

    @property
    def reference_words(self) -> str:
        """Return the reference's models in words."""
        same = "a model of the same method without the other participants"
        return same if self.reference == CONTROL else "a model trained alone"

    @property
    def sentence(self) -> str:
        """Return the verdict in words."""
        mean = "" if len(self.clients) == 1 else " on average"
        text = f"{self.difference}{mean} over {self.over}"
        if self.seeds == 1:
            return f"{text}. One seed cannot decide: other seeds may give another sign."
        total, clients = len(self.clients), f"client{'s' if len(self.clients) > 1 else ''}"
        helped, harmed = (f"{word} {self._count(word)}" for word in ("helped", "harmed"))
        undecided = self.number("undecided")
        return f"{text}, {self.seeds} seeds: of {total} {clients} it {helped} and {harmed}; {undecided} undecided."

    def _count(self, word: Word) -> str:
        names = self.names(word)
        return f"{len(names)} ({', '.join(map(str, names))})" if names else "0"

    def record(self) -> dict[str, Any]:
        """Return the effect for a JSON file."""
        clients = [asdict(v) | {"difference": v.difference} for v in self.clients]
        return asdict(self) | {"clients": clients, "sentence": self.sentence}


def effect_of(record: Mapping[str, Any]) -> Effect:
    """Return the effect from its record in a JSON file."""
    names = [field.name for field in fields(Verdict)]
    clients = [{name: client[name] for name in names} for client in record["clients"]]
    numbers = {field.name: record[field.name] for field in fields(Effect) if field.name in record}
    return Effect(**{**numbers, "clients": tuple(Verdict(**client) for client in clients)})


@dataclass(frozen=True)
class Tested:
    """The final tests of one run."""

    seed: int
    final: Sequence[FinalResult]
    right: Mapping[int, Graded]  # of the clients whose bits are known, counted from 0
    metric: str = ACCURACY


def measure_effect(runs: Sequence[RunFiles], references: Sequence[RunFiles], name: str = "") -> Effect | None:
    """Return the gain of runs over reference runs, seed by seed in the same order; None if no client is in both.

    `name` is the name of the references, by default their method.
    """
    ours, theirs = (
        [Tested(r.seed, r.final, read_graded(r.path, r.notes), r.metric) for r in of] for of in (runs, references)
    )
    return effect_between(ours, theirs, name or "".join(run.method for run in references[:1]))


def effect_between(runs: Sequence[Tested], references: Sequence[Tested], name: str) -> Effect | None:
    """Return the gain of runs over reference runs, seed by seed in the same order; None if no client is in both.

    A test of which the bits are missing in one of the runs is compared by its counts, as if the two tests were
    independent.
    """
    tests, results = _pair_tests(runs, references)
    found = compare_paired(tests)
    if found is None:
        return None
    adjusted = holm({k: estimate.p for k, estimate in found.clients.items()})
    verdicts = [
        Verdict(
            client=k + 1,
            domain=pairs[0][0]["domain"],
            reference=float(np.mean([pair[1]["accuracy"] for pair in pairs])),
            accuracy=float(np.mean([pair[0]["accuracy"] for pair in pairs])),
            low=found.clients[k].low,
            high=found.clients[k].high,
            p=adjusted[k],
            word=found.words[k],
        )
        for k, pairs in sorted(results.items())
    ]
    mean = found.mean
    return Effect(name, found.seeds, mean.value, mean.low, mean.high, tuple(verdicts), runs[0].metric)


def mean_difference(runs: Sequence[Tested], references: Sequence[Tested]) -> Estimate | None:
    """Return the mean over clients of the differences of `effect_between`; None if no client is in both."""
    found = compare_paired(_pair_tests(runs, references)[0])
    return None if found is None else found.mean


def _pair_tests(
    runs: Sequence[Tested], references: Sequence[Tested]
) -> tuple[list[PairedTest], dict[int, list[tuple[FinalResult, FinalResult]]]]:
    """Return the tests of clients that are in both, and the pairs of results of each."""
    tests: list[PairedTest] = []
    results: dict[int, list[tuple[FinalResult, FinalResult]]] = {}
    for run, reference in zip(runs, references, strict=True):
        theirs = {result["client"]: result for result in reference.final}
        for result in run.final:
            if (k := result["client"]) in theirs:
                test = _with_bits(k, run.seed, (result, run.right.get(k)), (theirs[k], reference.right.get(k)))
                if test := test or _without_bits(k, run.seed, result, theirs[k]):
                    tests.append(test)
                    results.setdefault(k, []).append((result, theirs[k]))
    return tests, results


def _with_bits(
    k: int, seed: int, ours: tuple[FinalResult, Graded | None], theirs: tuple[FinalResult, Graded | None]
) -> PairedTest | None:
    """Return the paired test; None if the bits of one run are missing, or are not those of its last result."""
    (_, right), (_, reference) = ours, theirs
    if right is None or reference is None or not np.array_equal(right.images, reference.images):
        return None
    if any(graded is None or int(graded.right.sum()) != result["correct"] for result, graded in (ours, theirs)):
        return None
    return PairedTest(k, seed, right.right.astype(np.int8) - reference.right.astype(np.int8), right.images)


def _without_bits(k: int, seed: int, result: FinalResult, reference: FinalResult) -> PairedTest | None:
    """Return the test by counts or, for another metric than accuracy, by standard errors; None if they are unknown."""
    domain = result["domain"]
    if result["correct"] is not None and reference["correct"] is not None:
        ours, theirs = (result["correct"], result["total"]), (reference["correct"], reference["total"])
        return paired_from_counts(k, seed, ours, theirs, domain)
    if result["score_error"] is None or reference["score_error"] is None:
        return None
    errors = result["score_error"], reference["score_error"]
    return paired_from_errors(k, seed, result["accuracy"] - reference["accuracy"], errors, domain)
