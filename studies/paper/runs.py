"""Finished runs as their result files describe them, and the quantities that they are summarised by."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from factorized_fl.federation.rundir import Record
from studies.runner import read_record

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
            return [statistics.fmean(self.tested(slice(-LAST, None)))]
        scores = zip(self.curve[-1 if after is None else after - 1], self.domains, strict=True)
        return [score for score, place in scores if score is not None and domain in (None, place)]

    def tested(self, rounds: slice) -> list[float]:
        """Return all accuracies of some rounds."""
        return [score for row in self.curve[rounds] for score in row if score is not None]

    @property
    def device(self) -> str:
        """The device that it ran on."""
        return self.record["environment"]["device"]

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
                return 100 * statistics.fmean(self.accuracies(after, domain))
            case "best":
                curves = [[score for score in row if score is not None] for row in zip(*self.curve, strict=True)]
                return 100 * statistics.fmean(max(curve) for curve in curves if curve)
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
            return statistics.fmean(_walk(item, steps[position + 1 :], tests) for item in items)
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
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def mean_curve(runs: Sequence[Run]) -> np.ndarray:
    """Return the accuracy over clients and seeds after every round, in percent."""
    rows = [[np.mean([score for score in row if score is not None]) for row in run.curve] for run in runs]
    return 100 * np.mean(np.array(rows), axis=0)


def bytes_by_round(runs: Sequence[Run]) -> np.ndarray:
    """Return the serialised bytes sent both ways until the end of each round, the mean over seeds."""
    rounds = [np.add(run.record["bytes"]["up_per_round"], run.record["bytes"]["down_per_round"]) for run in runs]
    return np.cumsum(np.mean(rounds, axis=0))
