"""The effect of other draws of non-IID partitions, predicted from the partitions themselves.

A plane over the size and the evenness of the measured clients' data predicts the mean over clients for any draw; draws
that the plane was not fitted to show its error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from factorized_fl.results.rundir import Record
from studies.paper.cells import Key
from studies.paper.draws import DATASETS
from studies.paper.grid import STUDIES, origin, reconstructs, without_draw
from studies.paper.published import published_mean
from studies.paper.runs import Run
from studies.paper.table import Table


@dataclass(frozen=True)
class Drawn:
    """One run on a non-IID partition: its draw, the described data of every client, and the accuracies in percent."""

    draw: int
    shares: np.ndarray
    accuracies: np.ndarray


@dataclass(frozen=True)
class LeftOut:
    """A draw that a plane was not fitted to: the measured mean over clients, and what the other draws predict."""

    key: Key
    draw: int
    seen: float
    predicted: float
    unpredicted: float  # the mean over the other draws' clients


@dataclass(frozen=True)
class Predicted:
    """The mean over clients with other draws, its standard deviation, and the share of draws below the first one.

    The standard deviation combines that of the predictions and the error on draws left out.
    """

    mean: float
    spread: float
    poorer: float


class Predictions:
    """Predictions for other draws from the finished cells with non-IID partitions."""

    def __init__(self, table: Table) -> None:
        self.means = {name: np.array(record["means"]) for name, record in table.draws.items()}
        self.drawn: dict[Key, list[Drawn]] = {}
        for (study, _, row), runs in table.cells.items():
            for run in runs if study != "choices" else ():
                if drawn := _drawn(run, table.draws):
                    self.drawn.setdefault(_key(run, row), []).append(drawn)

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Every draw of a method that was run with several draws, predicted from the others."""
        left_out = []
        for key, runs in self.drawn.items():
            for draw in dict.fromkeys(run.draw for run in runs):
                out, others = ([run for run in runs if (run.draw == draw) is chosen] for chosen in (True, False))
                if others:
                    shares, accuracies = _joined(out)
                    predicted, unpredicted = _at(_plane(others), shares.mean(axis=0)), _joined(others)[1].mean()
                    left_out.append(LeftOut(key, draw, float(accuracies.mean()), float(predicted), float(unpredicted)))
        return left_out

    @property
    def error(self) -> float:
        """The root mean square error on draws left out, in points."""
        return _root_mean_square(one.seen - one.predicted for one in self.left_out)

    @property
    def unpredicted(self) -> float:
        """The same error without any knowledge of the partitions."""
        return _root_mean_square(one.seen - one.unpredicted for one in self.left_out)

    def of(self, key: Key) -> Predicted | None:
        """Return the prediction for other draws; None if there was no such run or the error is unknown."""
        if key not in self.drawn or not self.left_out:
            return None
        means = _at(_plane(self.drawn[key]), self.means[key[0].removeprefix("label-")])
        spread = math.hypot(means.std(ddof=1), self.error)
        return Predicted(float(means.mean()), spread, float((means < means[0]).mean()))


@dataclass(frozen=True)
class Beside:
    """A published mean with a non-IID partition beside the prediction for other draws, None if it was not run."""

    key: Key
    paper: float
    predicted: Predicted | None

    @property
    def where(self) -> str:
        """The dataset and the setting."""
        return f"{self.key[0].removeprefix('label-')} {self.key[1]}"

    @property
    def off(self) -> float:
        """By how many standard deviations the published number differs from the mean over draws."""
        return (self.paper - self.predicted.mean) / self.predicted.spread if self.predicted else math.nan


def beside_published(predictions: Predictions) -> list[Beside]:
    """Return every mean of Table 1 with a non-IID partition: as printed, then as reconstructed."""
    keys: list[Key] = []
    for study in (f"label-{dataset}" for dataset in DATASETS):
        keys += [cell.key for cell in STUDIES[study].own]
        stand_ins = [(*origin(cell), cell.row) for cell in STUDIES["departures"].own if reconstructs(cell)]
        keys += [key for key in stand_ins if key[0] == study]
    return [
        Beside((study, setting, row), paper[0], predictions.of((study, setting, row)))
        for study, setting, row in keys
        if setting.endswith("-non-iid") and (paper := published_mean(study, setting, row.partition("+")[0]))
    ]


def _key(run: Run, row: str) -> Key:
    """Return the entry of Table 1 that a run is about, with its variant; other draws count as the same."""
    config = run.configuration
    setting = f"{'permuted' if config['permuted'] else 'standard'}-non-iid"
    return f"label-{config['dataset']}", setting, without_draw(row)


def _drawn(run: Run, draws: Mapping[str, Record]) -> Drawn | None:
    """Return a run on a described partition; None for other runs."""
    config = run.configuration
    draw = config.get("partition_seed") or run.seed
    if config["partition"] != "dirichlet" or config["dataset"] not in draws:
        return None
    described = draws[config["dataset"]]["clients"]
    accuracies = 100 * np.array(run.accuracies())
    if draw > len(described) or len(described[draw - 1]) != len(accuracies):
        return None
    return Drawn(draw, np.array(described[draw - 1]), accuracies)


def _root_mean_square(values: Iterable[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def _joined(runs: Sequence[Drawn]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([run.shares for run in runs]), np.concatenate([run.accuracies for run in runs])


def _plane(runs: Sequence[Drawn]) -> np.ndarray:
    """Return the least squares fit to all clients of some runs: the constant, then a slope for each measure."""
    shares, accuracies = _joined(runs)
    return np.linalg.lstsq(_with_ones(shares), accuracies, rcond=None)[0]


def _at(plane: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return _with_ones(shares) @ plane


def _with_ones(shares: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones((*shares.shape[:-1], 1)), shares], axis=-1)
