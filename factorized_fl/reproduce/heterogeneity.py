"""Why averaging fails when labels or domains differ (paper, figures 2 and 4), measured on models small in number.

Equally initialised models are trained on MNIST partition 1, partition 2, partition 2 with permuted labels, and
CIFAR-10. What is compared is their updates, as unit vectors: the distance is 0 for the same direction, sqrt(2) for
unrelated ones and 2 for opposite ones. The paper gives neither partition sizes nor lengths; ours are constants here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import mix
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import Client, Scenario, permutation
from factorized_fl.data.sources import load
from factorized_fl.methods import Roles, Tensors
from factorized_fl.reproduce.cells import as_record, write_result
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.run import find_device

PARTIES = ("partition 1", "partition 2", "partition 2, permuted", "CIFAR-10")
IMAGES, TEST_IMAGES = 2400, 6000  # a client's share of CIFAR-10 in the other studies, and its test
EPOCHS, AVERAGE_EVERY = 30, 3


@dataclass(frozen=True)
class Sets:
    """The two data sets, alike in size and channels."""

    mnist: ImageSet
    cifar10: ImageSet


def load_sets(data: Path | None) -> Sets:
    """MNIST as colour images of 32 x 32 pixels, and CIFAR-10."""
    (mnist,) = load("mnist", data, size=32, channels=3)
    (cifar10,) = load("cifar10", data)
    return Sets(mnist, cifar10)


def default_config(seed: int, method: str) -> Config:
    """The paper's training, but without augmentation, which would only add noise to what is measured."""
    options = {"tau": 1.0} if method == "factorized-fl" else {}
    return configure("cifar10-iid", method, seed=seed, rounds=EPOCHS, epochs=1, augment="none", **options)


def parties(sets: Sets, names: Sequence[str], seed: int, images: int = IMAGES, tests: int = TEST_IMAGES) -> Scenario:
    """The named parties as clients of a scenario in which labels do not agree."""
    offset = len(sets.mnist.images)
    orders = {
        name: numpy_rng(seed, "heterogeneity", name).permutation(len(found.images))
        for name, found in (("mnist", sets.mnist), ("cifar10", sets.cifar10))
    }
    if len(orders["mnist"]) < 2 * images + 1 or len(orders["cifar10"]) < images + 1:
        raise UserError(f"The study of heterogeneity needs more than {2 * images} images of MNIST and CIFAR-10.")

    def client(name: str) -> Client:
        foreign = name == "CIFAR-10"
        order = orders["cifar10"] + offset if foreign else orders["mnist"]
        first = images if name.startswith("partition 2") else 0
        beyond = images if foreign else 2 * images
        found = sets.cifar10 if foreign else sets.mnist
        classes = len(found.classes)
        labelling = permutation(classes, 1) if name.endswith("permuted") else list(range(classes))
        test = _positions(order[beyond : beyond + tests])
        return Client(
            name=name,
            domain=found.name,
            train=_positions(order[first : first + images]),
            validation=test,
            test=test,
            labelling=torch.tensor(labelling),
            classes=found.classes,
        )

    channels = sets.mnist.images.shape[1]
    return Scenario(
        images=torch.cat([sets.mnist.images, sets.cifar10.images]),
        labels=torch.cat([sets.mnist.labels, sets.cifar10.labels]),
        clients=tuple(client(name) for name in names),
        labels_agree=False,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


def _positions(order: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.sort(order))


def groups_of(roles: Roles) -> dict[str, list[str]]:
    """The parameters below the classifier: u, v and mu apart where there are such, else all together."""
    kinds: dict[str, list[str]] = {}
    for name, role in roles.items():
        if role.kind in ("u", "v", "mu", "body") and not role.head:
            kinds.setdefault(role.kind, []).append(name)
    return kinds


def update_distances(now: Tensors, before: Tensors, names: Sequence[str]) -> list[float]:
    """How far each client's update is from the first client's, both as unit vectors."""
    updates = torch.cat([(now[name] - before[name]).flatten(1).double() for name in names], 1)
    unit = torch.nn.functional.normalize(updates, dim=1)
    return [round(value, 4) for value in (unit[1:] - unit[0]).norm(dim=1).tolist()]


def trained_apart(federation: Federation, epochs: int, together: Sequence[str] = ()) -> Record:
    """Train all parties for some epochs; distances of each epoch's updates and of all updates since the start.

    The tensors named in `together` are averaged between the epochs.
    """
    groups = groups_of(federation.roles)
    clients = list(range(len(federation.state)))
    start = _copy(federation.state.common)
    record: Record = {kind: {"epoch": [], "total": []} for kind in groups}
    for epoch in range(1, epochs + 1):
        if epoch > 1:
            average(federation, together)
        before = _copy(federation.state.common)
        federation.engine.train(epoch, clients, federation.state, federation.momentum, lambda client: None)
        for kind, names in groups.items():
            for key, since in (("epoch", before), ("total", start)):
                record[kind][key].append(update_distances(federation.state.common, since, names))
    return record


def _copy(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def average(federation: Federation, names: Sequence[str]) -> None:
    """Give everybody the mean of the named tensors."""
    count = len(federation.state)
    uniform = torch.full((count, count), 1 / count, dtype=torch.float64)
    for name in names:
        federation.state.common[name].copy_(mix(uniform, federation.state.common[name]))


def averaging(federation: Federation, rounds: int, names: Sequence[str]) -> list[list[int]]:
    """Correct answers of the first party in every round: after its epochs, and of the average that follows them."""
    counts = []
    clients = list(range(len(federation.state)))
    for round in range(1, rounds + 1):
        federation.engine.train(round, clients, federation.state, federation.momentum, lambda client: None)
        trained = federation.engine.evaluate(round, [0], federation.state, federation.start)[0].correct
        average(federation, names)
        counts.append([trained, federation.engine.evaluate(round, [0], federation.state, federation.start)[0].correct])
    return counts


def study(
    sets: Sets,
    seed: int,
    device: torch.device,
    configs: Mapping[str, Config] | None = None,
    images: int = IMAGES,
    tests: int = TEST_IMAGES,
) -> Record:
    """The whole study with one seed."""
    configs = configs or {method: default_config(seed, method) for method in ("stand-alone", "factorized-fl")}
    dense, factorised = configs["stand-alone"], configs["factorized-fl"]
    epochs = dense.rounds
    everybody = parties(sets, PARTIES, seed, images, tests)
    environment = describe_environment(seed, str(device))

    def begin(config: Config, scenario: Scenario) -> Federation:
        return build_federation(config, scenario, device)

    record: Record = {
        "what": "heterogeneity",
        "seed": seed,
        "commit": environment.pop("commit"),
        "environment": environment,
        "configuration": as_record(dense),
        "factorised_options": as_record(factorised)["options"],
        "images": images,
        "tests": len(everybody.clients[0].test),
        "average_every": AVERAGE_EVERY,
        "parties": list(PARTIES),
        "dense": trained_apart(begin(dense, everybody), epochs),
        "factorised": trained_apart(begin(factorised, everybody), epochs),
        "factorised_together": {},
        "averaged": {},
    }
    for other in PARTIES[1:]:
        pair = parties(sets, (PARTIES[0], other), seed, images, tests)
        federation = begin(factorised, pair)
        record["factorised_together"][other] = trained_apart(federation, epochs, groups_of(federation.roles)["u"])
        rounds = epochs // AVERAGE_EVERY
        longer = replace(dense, epochs=AVERAGE_EVERY, rounds=rounds)
        for name, with_head in (("all", True), ("body", False)):
            federation = begin(longer, pair)
            names = [n for n, role in federation.roles.items() if role.kind != "stat" and (with_head or not role.head)]
            record["averaged"].setdefault(other, {})[name] = averaging(federation, rounds, names)
    alone = parties(sets, PARTIES[:1], seed, images, tests)
    longer = replace(dense, epochs=AVERAGE_EVERY, rounds=epochs // AVERAGE_EVERY)
    record["alone"] = averaging(begin(longer, alone), longer.rounds, ())
    return record


def path_of(results: Path, seed: int) -> Path:
    """Where the study with one seed is kept."""
    return results / "heterogeneity" / f"seed{seed}.json"


def run_study(results: Path, seed: int, data: Path | None, device: str) -> None:
    """Run the study with one seed and keep it."""
    began = time.monotonic()
    record = study(load_sets(data), seed, torch.device(find_device(device)))
    write_result(path_of(results, seed), record | {"seconds": round(time.monotonic() - began, 1)})
