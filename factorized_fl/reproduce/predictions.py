"""What other draws of unequal shares would bring, as far as the shares themselves tell it.

A plane through the clients that were measured, over how many images they hold and how evenly, predicts the mean over
clients for any draw; draws that it was not fitted to say how far it is off.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.collection import Collection, Key
from factorized_fl.reproduce.departures import origin, reconstructs, undrawn
from factorized_fl.reproduce.draws import SETS
from factorized_fl.reproduce.published import published_mean
from factorized_fl.reproduce.studies import STUDIES
from factorized_fl.results.rundir import Record


@dataclass(frozen=True)
class Run:
    """One run with unequal shares: its draw, what every client holds and the accuracy it reached, in percent."""

    draw: int
    shares: np.ndarray
    accuracies: np.ndarray


@dataclass(frozen=True)
class LeftOut:
    """A draw that a plane was not fitted to: the mean over its clients, and what the other draws predict for it."""

    place: Key
    draw: int
    seen: float
    predicted: float
    unpredicted: float  # the mean over the other draws' clients


@dataclass(frozen=True)
class Predicted:
    """What the mean over clients would be with other draws, their spread, and how many are poorer than the first.

    The spread is that of the predictions and the error on draws left out, together.
    """

    mean: float
    spread: float
    poorer: float


class Predictions:
    """What the finished cells with unequal shares tell about other draws."""

    def __init__(self, found: Collection) -> None:
        self.means = {name: np.array(record["means"]) for name, record in found.draws.items()}
        self.runs: dict[Key, list[Run]] = {}
        for (what, _, row), results in found.cells.items():
            for result in results if what != "choices" else ():
                place, run = _place(result, row), _run(result, found.draws)
                if run:
                    self.runs.setdefault(place, []).append(run)

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Every draw of a method that was run with several, predicted from the others."""
        told = []
        for place, runs in self.runs.items():
            for draw in dict.fromkeys(run.draw for run in runs):
                out, others = ([run for run in runs if (run.draw == draw) is chosen] for chosen in (True, False))
                if others:
                    shares, accuracies = _joined(out)
                    predicted, unpredicted = _at(_plane(others), shares.mean(axis=0)), _joined(others)[1].mean()
                    told.append(LeftOut(place, draw, float(accuracies.mean()), float(predicted), float(unpredicted)))
        return told

    @property
    def error(self) -> float:
        """By how much draws that were left out are mispredicted: the root of the mean square, in points."""
        return _root_mean_square(one.seen - one.predicted for one in self.left_out)

    @property
    def unpredicted(self) -> float:
        """The same of who knows nothing of the shares."""
        return _root_mean_square(one.seen - one.unpredicted for one in self.left_out)

    def of(self, place: Key) -> Predicted | None:
        """What other draws would bring; nothing if there was no such run, or nothing to tell the error by."""
        if place not in self.runs or not self.left_out:
            return None
        means = _at(_plane(self.runs[place]), self.means[place[0].removeprefix("label-")])
        spread = math.hypot(means.std(ddof=1), self.error)
        return Predicted(float(means.mean()), spread, float((means < means[0]).mean()))


@dataclass(frozen=True)
class Beside:
    """A published mean with unequal shares beside what many draws would bring; nothing if it was not run."""

    place: Key
    paper: float
    predicted: Predicted | None

    @property
    def where(self) -> str:
        """The data set and the setting."""
        return f"{self.place[0].removeprefix('label-')} {self.place[1]}"

    @property
    def off(self) -> float:
        """By how many standard deviations the published number is away from the mean over draws."""
        return (self.paper - self.predicted.mean) / self.predicted.spread if self.predicted else math.nan


def beside_published(predictions: Predictions) -> list[Beside]:
    """Every mean of Table 1 with unequal shares: as printed, then as reconstructed."""
    places: list[Key] = []
    for what in (f"label-{dataset}" for dataset in SETS):
        places += [(what, cell.setting, cell.row) for cell in STUDIES[what].own]
        stand_ins = [(*origin(cell), cell.row) for cell in STUDIES["departures"].own if reconstructs(cell)]
        places += [place for place in stand_ins if place[0] == what]
    return [
        Beside((what, setting, row), paper[0], predictions.of((what, setting, row)))
        for what, setting, row in places
        if setting.endswith("-non-iid") and (paper := published_mean(what, setting, row.partition("+")[0]))
    ]


def _place(result: Result, row: str) -> Key:
    """Which entry of Table 1 a run is about, with its variant; other draws count as the same."""
    config = result.configuration
    return f"label-{config['dataset']}", f"{'permuted' if config['permuted'] else 'standard'}-non-iid", undrawn(row)


def _run(result: Result, draws: Mapping[str, Record]) -> Run | None:
    """A run over shares that are described; nothing if it is none."""
    config = result.configuration
    draw = config.get("partition_seed") or result.seed
    if config["partition"] != "dirichlet" or config["dataset"] not in draws:
        return None
    described = draws[config["dataset"]]["clients"]
    accuracies = 100 * np.array(result.accuracies())
    if draw > len(described) or len(described[draw - 1]) != len(accuracies):
        return None
    return Run(draw, np.array(described[draw - 1]), accuracies)


def _root_mean_square(values: Iterable[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def _joined(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([run.shares for run in runs]), np.concatenate([run.accuracies for run in runs])


def _plane(runs: Sequence[Run]) -> np.ndarray:
    """The least squares fit to all clients of some runs: what stands alone, then a slope for each measure."""
    shares, accuracies = _joined(runs)
    return np.linalg.lstsq(_with_ones(shares), accuracies, rcond=None)[0]


def _at(plane: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return _with_ones(shares) @ plane


def _with_ones(shares: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones((*shares.shape[:-1], 1)), shares], axis=-1)
