"""Many draws of unequal shares, described by what is known before anybody trains: who holds how much of what."""

import time
from pathlib import Path

import numpy as np

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import load, normalisation
from factorized_fl.reproduce.cells import as_record, write_result
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record

SETS = ("cifar10", "svhn")
DRAWS = 500
KEPT = 10  # of the first draws every client is kept, of the others the mean over clients


def describe(counts: np.ndarray) -> np.ndarray:
    """Of clients with so many images of each class, [K, C]: the logarithm of all, and how even they are, [K, 2].

    Evenness is the mean over classes of log(1 + percent of the client's images).
    """
    held = counts.sum(axis=1, keepdims=True)
    return np.column_stack([np.log(held), np.log1p(100 * counts / held).mean(axis=1)])


def study(images: ImageSet, config: Config, draws: int) -> Record:
    """Describe the shares of every draw, its seed being its number."""
    clients, means = [], []
    for seed in range(1, draws + 1):
        scenario = build_scenario(
            [images],
            normalisation(config.dataset, images.images.shape[1]),
            clients=config.clients,
            partition=config.partition,
            alpha=config.alpha,
            train_share=config.train_share,
            seed=seed,
        )
        labels = [scenario.labels[client.train].numpy() for client in scenario.clients]
        shares = describe(np.stack([np.bincount(own, minlength=len(images.classes)) for own in labels]))
        means.append(np.round(shares.mean(axis=0), 5).tolist())
        if seed <= KEPT:
            clients.append(np.round(shares, 5).tolist())
    return {"clients": clients, "means": means}


def path_of(results: Path, dataset: str) -> Path:
    """Where the draws of a data set are kept."""
    return results / "draws" / f"{dataset}.json"


def run_study(results: Path, dataset: str, data: Path | None, device: str) -> None:
    """Draw the shares of a data set many times and keep what they are like, which needs no device."""
    began = time.monotonic()
    config = configure(f"{dataset}-non-iid", "stand-alone")
    (images,) = load(dataset, data)
    environment = describe_environment(config.seed, "cpu")
    record: Record = {
        "what": "draws",
        "dataset": dataset,
        "commit": environment.pop("commit"),
        "environment": environment,
        "configuration": as_record(config),
        **study(images, config, DRAWS),
    }
    write_result(path_of(results, dataset), record | {"seconds": round(time.monotonic() - began, 1)})
