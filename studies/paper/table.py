"""The tidy table of all finished runs, the quantities of a run, and the differences between cells."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from factorized_fl.results.rundir import Record
from factorized_fl.results.statistic import (
    Estimate,
    PairedTest,
    compare_paired,
    paired_from_counts,
    paired_from_errors,
    pooled_deviation,
    share_variance,
    variance_around_trend,
)
from studies.paper.cells import Cell, Key, as_key
from studies.paper.grid import STANDS_FOR, STUDIES, reconstruction
from studies.runner import read_record

CHOICES = "choices.json"
LAST = 5  # rounds whose mean is the last accuracy of a single client


@dataclass(frozen=True)
class Run:
    """A finished cell with one seed, or one seed of the study of heterogeneity."""

    record: Record

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.record["seed"]

    @property
    def domains(self) -> list[str]:
        """The domain of every client."""
        return self.record["clients"]["domain"]

    @cached_property
    def curve(self) -> list[list[float | None]]:
        """Accuracy of every client (inner) after every round (outer); None where a client was not tested."""
        totals = self.record["clients"]["scored"]
        return [
            [None if right is None else right / total for right, total in zip(row, totals, strict=True)]
            for row in self.record["correct"]
        ]

    def accuracies(self, after: int | None = None, domain: str | None = None) -> list[float]:
        """Return the accuracies of the tested clients, or of one domain's, after a round, by default the last.

        The accuracy of a client that trains alone varies from round to round and nothing averages that out: its last
        accuracy is the mean over the LAST rounds.
        """
        if after is None and len(self.domains) == 1:
            return [fmean(self.tested(slice(-LAST, None)))]
        scores = zip(self.curve[-1 if after is None else after - 1], self.domains, strict=True)
        return [score for score, place in scores if score is not None and domain in (None, place)]

    def tested(self, rounds: slice) -> list[float]:
        """Return all accuracies of some rounds."""
        return [score for row in self.curve[rounds] for score in row if score is not None]

    @property
    def inactive(self) -> bool:
        """Whether the method never had its effect, such as Clustered-FL without a split."""
        clusters = self.record.get("mixing", {}).get("clusters")
        return clusters is not None and len(set(clusters)) == 1

    @property
    def seconds(self) -> float:
        """The time that it took, start included."""
        seconds = self.record["seconds"]  # a number in the study of heterogeneity
        return seconds["rounds"] + seconds["start"] if isinstance(seconds, dict) else seconds

    def entry(self, path: str) -> Any:
        """Return what the record has at a path such as "mixing/own/-1"; None if there is no such entry.

        A number is an index, of which those beyond the end are the last; "*" is the mean over all items, "-10:*" that
        over the last ten. Correct answers under "averaged" are returned in percent of the test.
        """
        try:
            return _walk(self.record, path.split("/"), self.record["tests"] if path.startswith("averaged/") else None)
        except KeyError:
            return None

    def measure(self, quantity: str, after: int | None = None, domain: str | None = None) -> float | None:
        """Return a quantity; None if the run has none of it.

        "percent" is the mean accuracy over clients, "best" that of each client's best round, "gigabytes" are serialised
        bytes both ways, "formula_a" and "formula_b" gigabytes by the paper's formula, "millions" the size of a
        factorised model without the pruned entries of mu (the paper's count); anything else is an entry's path.
        """
        match quantity:
            case "percent":
                return 100 * fmean(self.accuracies(after, domain))
            case "best":
                curves = [[score for score in row if score is not None] for row in zip(*self.curve, strict=True)]
                return 100 * fmean(max(curve) for curve in curves if curve)
            case "gigabytes":
                return (self.record["bytes"]["up"] + self.record["bytes"]["down"]) / 1e9
            case "formula_a" | "formula_b":
                return self.record["bytes"][quantity] / 1e9
            case "millions":
                if not (factors := self.record.get("factors")):
                    return None
                kept = factors.get("mu_kept", [0])[-1 if after is None or "mu_kept" not in factors else after - 1]
                return (factors["numbers"]["u"] + factors["numbers"]["v"] + kept) / 1e6
        return self.entry(quantity)


def _walk(value: Any, steps: Sequence[str], tests: int | None) -> Any:
    for position, step in enumerate(steps):
        if step.endswith("*"):
            items = value[int(step[:-2]) :] if len(step) > 1 else value
            return fmean(_walk(item, steps[position + 1 :], tests) for item in items)
        value = value[min(int(step), len(value) - 1)] if isinstance(value, list) else value[step]
    return 100 * value / tests if tests else value


def read_run(path: Path) -> Run | None:
    """Return a finished cell; None if it was not run."""
    return Run(read_record(path, "clients", "correct")) if path.exists() else None


class Mean(NamedTuple):
    """A mean over seeds, and the standard deviation between seeds if there are several."""

    value: float
    spread: float | None


def mean_of(
    runs: Sequence[Run], quantity: str = "percent", after: int | None = None, domain: str | None = None
) -> Mean | None:
    """Return the mean of a quantity over seeds; None without runs that have it."""
    values = [value for run in runs if (value := run.measure(quantity, after, domain)) is not None]
    if not values:
        return None
    return Mean(fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def mean_curve(runs: Sequence[Run]) -> np.ndarray:
    """Return the accuracy over clients and seeds after every round, in percent."""
    rows = [[np.mean([score for score in row if score is not None]) for row in run.curve] for run in runs]
    return 100 * np.mean(np.array(rows), axis=0)


def bytes_by_round(runs: Sequence[Run]) -> np.ndarray:
    """Return the serialised bytes sent both ways until the end of each round, the mean over seeds."""
    rounds = [np.add(run.record["bytes"]["up_per_round"], run.record["bytes"]["down_per_round"]) for run in runs]
    return np.cumsum(np.mean(rounds, axis=0))


class Compared(NamedTuple):
    """The difference of two cells' accuracies in points, and the seeds that both have."""

    difference: Estimate
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return f"{self.difference.value:+.2f} points, standard error {self.difference.error:.2f}, {seeds}"


@dataclass(frozen=True)
class Table:
    """All finished runs, one row per cell and seed, and the results that are not runs."""

    cells: Mapping[Key, list[Run]]  # in the order of the seeds
    heterogeneity: list[Run] = field(default_factory=list)
    choices: Sequence[Record] = ()
    draws: Mapping[str, Record] = field(default_factory=dict)  # of non-IID partitions, by dataset
    between_seeds: float = 0.0  # standard deviation of the difference of two cells from seed to seed, in points
    printed: Mapping[Key, list[Run]] = field(default_factory=dict)  # the runs that reconstructed ones replace

    def of(self, study: str, setting: str, row: str) -> list[Run]:
        """Return the runs of a cell, one per seed; none if it was not run."""
        return self.cells.get((study, setting, row), [])

    def runs(self, cell: Cell | str) -> list[Run]:
        """Return the same for a cell or "study/setting/row", or the runs of the study of "heterogeneity"."""
        if cell == "heterogeneity":
            return self.heterogeneity
        return self.of(*(as_key(cell) if isinstance(cell, str) else cell.key))

    def compare(self, one: Key, other: Key, after: int | None = None, domain: str | None = None) -> Compared | None:
        """Return the mean difference of two cells over all clients, or a domain's, of the seeds that both have.

        None if they have no seed in common. The statistic is that of the package. The runs do not hold which test
        images were right, so their tests are compared by counts. Where a cell has more seeds than the single common
        one, or stands for printed runs that have, its own variation between seeds counts if it is larger than the
        pooled one.
        """
        others = {run.seed: run for run in self.of(*other)}
        pairs = [(run, others[run.seed]) for run in self.of(*one) if run.seed in others]
        known = [max(self.of(*key), self.printed.get(key, []), key=len) for key in (one, other)]
        several = [runs for runs in known if len(runs) > len(pairs) == 1]
        spreads = [statistics.stdev(run.measure("percent", after) or 0.0 for run in runs) for runs in several]
        tests = [test for pair in pairs for test in _paired_tests(*pair, after, domain)]
        single = all(len(run.domains) == 1 for run, _ in pairs)
        found = compare_paired(tests, 0.0 if single else max(self.between_seeds, *spreads, 0.0) / 100)
        if found is None:
            return None
        mean = replace(found.mean, value=100 * found.mean.value, error=100 * found.mean.error)
        return Compared(mean, tuple(run.seed for run, _ in pairs))


def _paired_tests(one: Run, other: Run, after: int | None, domain: str | None) -> list[PairedTest]:
    """Return the tests of all clients of two runs of one seed; clients of a domain share their test images.

    The accuracy of a single client is a mean over rounds, so its standard error is known, but no count.
    """
    if len(one.domains) == 1:
        difference = one.accuracies(after, domain)[0] - other.accuracies(after, domain)[0]
        errors = _variance(one, after) ** 0.5, _variance(other, after) ** 0.5
        return [paired_from_errors(0, one.seed, difference, errors, one.domains[0])]
    counts = (run.record["correct"][-1 if after is None else after - 1] for run in (one, other))
    totals = (run.record["clients"]["scored"] for run in (one, other))
    return [
        paired_from_counts(k, one.seed, (right, total), (theirs, their_total), place)
        for k, (right, theirs, total, their_total, place) in enumerate(zip(*counts, *totals, one.domains, strict=True))
        if right is not None and theirs is not None and domain in (None, place)
    ]


def _variance(run: Run, after: int | None) -> float:
    """Return the variance of a single client's accuracy: of its test, and of the rounds around."""
    (accuracy,), (total,) = run.accuracies(after), run.record["clients"]["scored"]
    if after is None:
        last = run.tested(slice(-LAST, None))
        between = statistics.variance(last) / len(last) if len(last) > 1 else 0.0
    else:
        between = variance_around_trend(run.tested(slice(max(0, after - 4), after + 3)))
    return share_variance(accuracy, total) + between


def read_choices(results: Path) -> list[Record]:
    """Return the choices that were made; none if there is no file."""
    path = results / CHOICES
    return read_record(path, "chosen")["chosen"] if path.exists() else []


def collect(results: Path) -> Table:
    """Read all finished cells of all studies, every seed there is."""
    cells = {}
    for cell in (cell for study in STUDIES.values() for cell in study.own):
        ending = cell.path(results).name.removesuffix("-seed1.json")
        paths = cell.path(results).parent.glob(f"{ending}-seed*.json")
        if runs := [run for path in paths if (run := read_run(path))]:
            cells[cell.key] = sorted(runs, key=lambda run: run.seed)
    others, drawn = (sorted((results / name).glob("*.json")) for name in ("heterogeneity", "draws"))
    # Pairs that have a cell in common are not independent, which makes the pooled deviation less certain, not biased.
    several = {key: runs for key, runs in cells.items() if key[0] != "choices" and len(runs[0].domains) > 1}
    means = {key: {run.seed: run.measure("percent") or 0.0 for run in runs} for key, runs in several.items()}
    pairs = [(means[one], means[other]) for one, other in combinations(means, 2) if one[:2] == other[:2]]
    return Table(
        cells,
        heterogeneity=[Run(read_record(path, "dense", "averaged")) for path in others],
        choices=read_choices(results),
        draws={path.stem: read_record(path, "clients", "means") for path in drawn},
        between_seeds=pooled_deviation([[a[seed] - b[seed] for seed in a.keys() & b.keys()] for a, b in pairs]),
    )


def reconstructed(table: Table) -> Table:
    """Return the table with the deviations that stand for published runs in their place; others of them are missing."""
    factorised = {name for name, method in METHODS.items() if issubclass(method, Factorized)}
    replaced = factorised | STANDS_FOR.keys()
    cells = {key: runs for key, runs in table.cells.items() if key[2].partition("+")[0] not in replaced}
    cells |= {key: runs for key, cell in reconstruction().items() if (runs := table.runs(cell))}
    return replace(table, cells=cells, printed=table.cells)
