"""Draws of non-IID partitions: described by the data of each client, and their effect predicted from that.

A plane over the size and the evenness of the measured clients' data predicts the mean over clients for any draw; draws
that the plane was not fitted to show its error.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LinearRegression

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import load, normalisation
from factorized_fl.results.rundir import Record
from studies.paper.cells import Key, published_mean
from studies.paper.grid import STUDIES, reconstruction
from studies.paper.table import Table
from studies.runner import write_measured

DATASETS = ("cifar10", "svhn")
DRAWS = 500
KEPT = 10  # of these first draws every client is kept, of the others the mean over clients


def describe_shares(counts: np.ndarray) -> np.ndarray:
    """Return for clients with so many images of each class, [K, C], the log of their sum and the evenness, [K, 2].

    Evenness is the mean over classes of log(1 + percent of the client's images).
    """
    held = counts.sum(axis=1, keepdims=True)
    return np.column_stack([np.log(held), np.log1p(100 * counts / held).mean(axis=1)])


def describe_draws(images: ImageSet, config: Config, draws: int) -> Record:
    """Return the described partition of every draw; the number of a draw is its seed."""
    options = ("clients", "partition", "alpha", "train_share")
    scale, clients, means = normalisation(config.dataset, images.images.shape[1]), [], []
    for seed in range(1, draws + 1):
        scenario = build_scenario([images], scale, seed=seed, **{name: getattr(config, name) for name in options})
        labels = [scenario.labels[client.train].numpy() for client in scenario.clients]
        shares = describe_shares(np.stack([np.bincount(own, minlength=len(images.classes)) for own in labels]))
        means.append(np.round(shares.mean(axis=0), 5).tolist())
        if seed <= KEPT:
            clients.append(np.round(shares, 5).tolist())
    return {"clients": clients, "means": means}


def run_draws(dataset: str, data: Path | None, device: str, path: Path) -> None:
    """Draw the partitions of a dataset many times and write their description; this needs no device."""
    config, (images,) = configure(f"{dataset}-non-iid", "stand-alone"), load(dataset, data)
    what: Record = {"what": "draws", "dataset": dataset}
    write_measured(path, config, "cpu", lambda: what | describe_draws(images, config, DRAWS))


Drawn = tuple[np.ndarray, np.ndarray]  # the described data of each client, and the accuracies in percent


class LeftOut(NamedTuple):
    """A draw that a plane was not fitted to: the measured mean over clients, and what the other draws predict."""

    key: Key
    draw: int
    seen: float
    predicted: float
    unpredicted: float  # the mean over the other draws' clients


class Predicted(NamedTuple):
    """The effect of other draws on the mean over clients."""

    mean: float
    spread: float  # standard deviation of the predictions combined with the error on draws left out
    poorer: float  # share of draws below the first one


class Beside(NamedTuple):
    """A published mean with a non-IID partition, and the prediction for other draws, None if it was not run."""

    key: Key
    paper: float
    predicted: Predicted | None


class Predictions:
    """Predictions for other draws from the finished cells with non-IID partitions."""

    def __init__(self, table: Table) -> None:
        self.draws = table.draws
        self.drawn: dict[Key, list[tuple[int, Drawn]]] = {}  # by entry of Table 1, with its variant; draw and run
        runs = [(row, run) for (study, _, row), runs in table.cells.items() if study != "choices" for run in runs]
        for row, run in runs:
            config, accuracies = run.record["configuration"], 100 * np.array(run.accuracies())
            draw, dataset = config.get("partition_seed") or run.seed, config["dataset"]
            described = self.draws[dataset]["clients"][draw - 1 : draw] if dataset in self.draws else []
            if config["partition"] == "dirichlet" and described and len(described[0]) == len(accuracies):
                setting = f"{'permuted' if config['permuted'] else 'standard'}-non-iid"
                key = (f"label-{dataset}", setting, row.partition("+draw=")[0])
                self.drawn.setdefault(key, []).append((draw, (np.array(described[0]), accuracies)))

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Every draw of a method that was run with several draws, predicted from the others."""
        left_out = []
        for key, runs in self.drawn.items():
            for draw in dict.fromkeys(draw for draw, _ in runs):
                out, others = ([run for d, run in runs if (d == draw) is chosen] for chosen in (True, False))
                if others:
                    shares, accuracies = _joined(out)
                    (predicted,) = LinearRegression().fit(*_joined(others)).predict([shares.mean(axis=0)])
                    unpredicted = _joined(others)[1].mean()
                    left_out.append(LeftOut(key, draw, float(accuracies.mean()), float(predicted), float(unpredicted)))
        return left_out

    def error(self, predicted: str = "predicted") -> float:
        """Return the root mean square error on draws left out, in points; of "unpredicted" without the partitions."""
        return math.sqrt(fmean((one.seen - getattr(one, predicted)) ** 2 for one in self.left_out))

    def of(self, key: Key) -> Predicted | None:
        """Return the prediction for other draws; None if there was no such run or the error is unknown."""
        if key not in self.drawn or not self.left_out:
            return None
        plane = LinearRegression().fit(*_joined([run for _, run in self.drawn[key]]))
        means = plane.predict(self.draws[key[0].removeprefix("label-")]["means"])
        spread = math.hypot(means.std(ddof=1), self.error())
        return Predicted(float(means.mean()), spread, float((means < means[0]).mean()))

    def beside_published(self) -> list[Beside]:
        """Return every mean of Table 1 with a non-IID partition: as printed, then as reconstructed."""
        keys: list[Key] = []
        for study in (f"label-{dataset}" for dataset in DATASETS):
            keys += [cell.key for cell in STUDIES[study].own]
            keys += [(*key[:2], cell.row) for key, cell in reconstruction().items() if key[0] == study]
        unequal = [key for key in keys if key[1].endswith("-non-iid")]
        papers = [published_mean(*key[:2], key[2].partition("+")[0]) for key in unequal]
        return [Beside(key, paper[0], self.of(key)) for key, paper in zip(unequal, papers, strict=True) if paper]


def _joined(runs: Sequence[Drawn]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([shares for shares, _ in runs]), np.concatenate([accuracies for _, accuracies in runs])
