"""Many draws of non-IID partitions, described by what is known before training: the data of each client."""

import time
from pathlib import Path

import numpy as np

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import load, normalisation
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record
from studies.records import as_record, write_record

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
        shares = describe_shares(np.stack([np.bincount(own, minlength=len(images.classes)) for own in labels]))
        means.append(np.round(shares.mean(axis=0), 5).tolist())
        if seed <= KEPT:
            clients.append(np.round(shares, 5).tolist())
    return {"clients": clients, "means": means}


def path_of(results: Path, dataset: str) -> Path:
    """Return where the draws of a dataset are kept."""
    return results / "draws" / f"{dataset}.json"


def run_draws(results: Path, dataset: str, data: Path | None, device: str) -> None:
    """Draw the partitions of a dataset many times and keep their description; this needs no device."""
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
        **describe_draws(images, config, DRAWS),
    }
    write_record(path_of(results, dataset), record | {"seconds": round(time.monotonic() - began, 1)})
