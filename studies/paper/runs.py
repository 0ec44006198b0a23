"""Finished runs as their result files describe them, and what single runs are summarised by."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from factorized_fl.results.rundir import Record
from studies.records import read_record

LAST = 5  # rounds whose mean is the last accuracy of a single client


@dataclass(frozen=True)
class Run:
    """A finished cell with one seed."""

    record: Record

    @property
    def configuration(self) -> Record:
        """All options of the run."""
        return self.record["configuration"]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.record["seed"]

    @property
    def domains(self) -> list[str]:
        """The domain of every client."""
        return self.record["clients"]["domain"]

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.record["correct"])

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
            return [statistics.fmean(self.last_accuracies)]
        scores = zip(self.curve[-1 if after is None else after - 1], self.domains, strict=True)
        return [score for score, place in scores if score is not None and domain in (None, place)]

    @property
    def last_accuracies(self) -> list[float]:
        """A single client's accuracies after its LAST rounds."""
        return [score for row in self.curve[-LAST:] for score in row if score is not None]

    def percent(self, after: int | None = None, domain: str | None = None) -> float:
        """Return the mean accuracy over clients in percent."""
        return 100 * statistics.fmean(self.accuracies(after, domain))

    @property
    def even_weight(self) -> float:
        """The weight that each client would give to itself if all weights were equal."""
        return 1 / len(self.domains)

    @property
    def device(self) -> str:
        """The device that it ran on."""
        return self.record["environment"]["device"]

    @property
    def seconds(self) -> float:
        """The time that the cell took, start included."""
        return self.record["seconds"]["rounds"] + self.record["seconds"]["start"]

    def millions(self, after: int | None = None) -> float | None:
        """Return the millions of parameters of a factorised model without the pruned entries of mu (the paper's count).

        None for a model that is not factorised.
        """
        factors = self.record.get("factors")
        if not factors:
            return None
        kept = factors["mu_kept"][-1 if after is None else after - 1] if "mu_kept" in factors else 0
        return (factors["numbers"]["u"] + factors["numbers"]["v"] + kept) / 1e6


def read_run(path: Path) -> Run | None:
    """Return a finished cell; None if it was not run."""
    return Run(read_record(path, "clients", "correct")) if path.exists() else None


@dataclass(frozen=True)
class Mean:
    """A mean in percent over clients and seeds, and the standard deviation between seeds if there are several."""

    value: float
    spread: float | None
    seeds: tuple[int, ...]


def mean_accuracy(runs: Sequence[Run], domain: str | None = None, after: int | None = None) -> Mean | None:
    """Return the mean over clients and seeds, of one domain or all, after a round or the last; None without runs."""
    if not runs:
        return None
    values = [run.percent(after, domain) for run in runs]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), spread, tuple(run.seed for run in runs))


def best_accuracy(runs: Sequence[Run]) -> float | None:
    """Return the mean over clients and seeds of each client's best round in percent; None without runs."""
    curves = [[score for score in curve if score is not None] for run in runs for curve in zip(*run.curve, strict=True)]
    return 100 * statistics.fmean(max(curve) for curve in curves if curve) if runs else None


def mean_curve(runs: Sequence[Run]) -> np.ndarray:
    """Return the accuracy over clients and seeds after every round, in percent."""
    rows = [[np.mean([score for score in row if score is not None]) for row in run.curve] for run in runs]
    return 100 * np.mean(np.array(rows), axis=0)


def mean_millions(runs: Sequence[Run], after: int | None = None) -> float | None:
    """Return the mean size of factorised models in millions; None without any."""
    sizes = [size for run in runs if (size := run.millions(after)) is not None]
    return statistics.fmean(sizes) if sizes else None


def bytes_by_round(runs: Sequence[Run]) -> np.ndarray:
    """Return the serialised bytes sent both ways until the end of each round, the mean over seeds."""
    rounds = [np.add(run.record["bytes"]["up_per_round"], run.record["bytes"]["down_per_round"]) for run in runs]
    return np.cumsum(np.mean(rounds, axis=0))


def total_bytes(runs: Sequence[Run]) -> float | None:
    """Return the serialised bytes of a run, both ways, the mean over seeds; None without runs."""
    return statistics.fmean(run.record["bytes"]["up"] + run.record["bytes"]["down"] for run in runs) if runs else None


def formula_gigabytes(runs: Sequence[Run], convention: str = "a") -> float | None:
    """Return the gigabytes of a run by the paper's formula; None without runs."""
    return statistics.fmean(run.record["bytes"][f"formula_{convention}"] for run in runs) / 1e9 if runs else None
