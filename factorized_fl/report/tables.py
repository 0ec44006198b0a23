"""Tables for a person: what a run is about to do, what it achieved, how methods compare."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from factorized_fl.core.errors import UserError
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import Record
from factorized_fl.results.verdict import Verdict, diverged, divergence_line, verdicts
from factorized_fl.simulate.build import Federation


def size(count: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def scenario_table(scenario: Scenario) -> Table:
    """Who holds how many images under which labels."""
    agree = "labels agree" if scenario.labels_agree else "labels differ, classifiers stay at home"
    table = Table(title=f"{len(scenario.clients)} clients, {agree}", title_justify="left")
    for heading in ("client", "domain", "train", "validation", "test", "label of class 0, 1, 2, ..."):
        table.add_column(heading, justify="right" if heading in ("train", "validation", "test") else "left")
    for client in scenario.clients:
        table.add_row(
            client.name.removeprefix("client "),
            client.domain,
            f"{len(client.train):,}",
            f"{len(client.validation):,}",
            f"{len(client.test):,}",
            " ".join(str(label) for label in client.labelling.tolist()),
        )
    return table


def model_line(federation: Federation) -> str:
    """Parameter counts by role and what travels, in one line."""
    counts: dict[str, int] = {}
    tensors = federation.clients.state.client(0)
    for name, role in federation.roles.items():
        if tensors[name].dim():  # a step counter is not a parameter
            counts[role.kind] = counts.get(role.kind, 0) + tensors[name].numel()
    shared = sum(tensors[name].numel() for name in federation.shared)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
    return f"{federation.config.model}: {sum(counts.values()):,} numbers ({kinds}); {shared:,} shared"


def result_table(summary: Record) -> Table:
    """Final accuracy of every client."""
    mean, spread, count = summary["accuracy_mean"], summary["accuracy_spread"], len(summary["clients"])
    result = "nobody was tested" if mean is None else f"{100 * mean:.2f}% ± {100 * spread:.2f} over {count} clients"
    sent = f"up {size(summary['up_bytes'])}, down {size(summary['down_bytes'])}"
    title = f"{METHODS[summary['method']].card.title}: {result}, {sent}"
    table = Table(title=title, title_justify="left")
    for heading in ("client", "domain", "accuracy", "right / tested"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for client in summary["clients"]:
        table.add_row(
            str(client["client"] + 1),
            client["domain"],
            f"{100 * client['accuracy']:.2f}%",
            f"{client['correct']:,} / {client['total']:,}",
        )
    return table


@dataclass(frozen=True)
class Comparison:
    """One method's row in a comparison."""

    method: str
    accuracy: float
    client_spread: float  # between clients, averaged over seeds
    seed_spread: float | None  # between seeds' means
    up_bytes: float  # of one run
    down_bytes: float
    verdicts: tuple[Verdict, ...]  # against Stand-Alone, if that was run, too
    diverged: tuple[int, ...] = ()  # clients, with any seed

    def clients(self, word: str) -> list[int]:
        """The clients, counted from 1, of whom that is the verdict."""
        return [verdict.client + 1 for verdict in self.verdicts if verdict.word == word]

    @property
    def better(self) -> int:
        """Clients whose accuracy is above their own Stand-Alone model's, surely or not."""
        return sum(verdict.difference > 0 for verdict in self.verdicts)


def compare(summaries: Mapping[str, Sequence[Record]], baseline: str = "stand-alone") -> list[Comparison]:
    """Rows of a comparison; summaries are given per method, one per seed in the same order."""
    rows = []
    for method, runs in summaries.items():
        means = [run["accuracy_mean"] for run in runs]
        if None in means:
            raise UserError(f"Nobody was tested with {method}: choose a smaller dropout, or more rounds.")
        compared = baseline in summaries and method != baseline
        rows.append(
            Comparison(
                method=method,
                accuracy=statistics.fmean(means),
                client_spread=statistics.fmean(run["accuracy_spread"] for run in runs),
                seed_spread=statistics.stdev(means) if len(means) > 1 else None,
                up_bytes=statistics.fmean(run["up_bytes"] for run in runs),
                down_bytes=statistics.fmean(run["down_bytes"] for run in runs),
                verdicts=tuple(verdicts(runs, summaries[baseline])) if compared else (),
                diverged=tuple(sorted({c["client"] for run in runs for c in run["clients"] if diverged(c)})),
            )
        )
    return rows


def comparison_table(rows: Sequence[Comparison], title: str) -> Table:
    """The comparison for a terminal."""
    table = Table(title=title, title_justify="left")
    headings = ("method", "accuracy", "± clients", "± seeds", "beat Stand-Alone", "helped", "harmed", "up", "down")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    best = max(row.accuracy for row in rows)
    for row in rows:
        accuracy = f"{100 * row.accuracy:.2f}%"
        table.add_row(
            METHODS[row.method].card.title,
            Text(accuracy, style="bold" if row.accuracy == best else ""),
            f"{100 * row.client_spread:.2f}",
            "-" if row.seed_spread is None else f"{100 * row.seed_spread:.2f}",
            f"{row.better} of {len(row.verdicts)}" if row.verdicts else "-",
            str(len(row.clients("helped"))) if row.verdicts else "-",
            str(len(row.clients("harmed"))) if row.verdicts else "-",
            size(row.up_bytes),
            size(row.down_bytes),
        )
    return table


def verdict_lines(rows: Sequence[Comparison]) -> list[str]:
    """In plain words: whom each method helped and whom it harmed, and whose training went wrong."""
    lines = []
    for row in rows:
        if row.verdicts:
            parts = [f"{word} {_clients(row.clients(word))}" for word in ("helped", "harmed")]
            lines.append(f"{METHODS[row.method].card.title}: {', '.join(parts)}; the rest within two standard errors.")
        if row.diverged:
            lines.append(f"{METHODS[row.method].card.title}: {divergence_line(row.diverged)}")
    return lines


def _clients(numbers: Sequence[int]) -> str:
    if not numbers:
        return "nobody"
    return f"client{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
