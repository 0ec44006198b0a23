"""Why averaging fails when labels or domains differ (paper, figures 2 and 4), measured on a few models.

Equally initialised models are trained on different data. Their updates are compared as unit vectors: the distance is 0
for the same direction, sqrt(2) for unrelated ones and 2 for opposite ones. The paper gives neither sizes nor lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import weigh
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.views import Roles, Tensors
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import Client, Scenario, permutation
from factorized_fl.data.sources import load
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.run import find_device
from studies.runner import as_record, write_measured

PARTIES = ("partition 1", "partition 2", "partition 2, permuted", "CIFAR-10")
IMAGES, TEST_IMAGES = 2400, 6000  # a client's share of CIFAR-10 in the other studies, and its test
EPOCHS, AVERAGE_EVERY = 30, 3
Sets = tuple[ImageSet, ImageSet]  # MNIST as colour images of 32 x 32 pixels, and CIFAR-10


def default_config(seed: int, method: str) -> Config:
    """Return the paper's training without augmentation, which would only add noise to what is measured."""
    options = {"tau": 1.0} if method == "factorized-fl" else {}
    return configure("cifar10-iid", method, seed=seed, rounds=EPOCHS, epochs=1, augment="none", **options)


def parties(sets: Sets, names: Sequence[str], seed: int, images: int = IMAGES, tests: int = TEST_IMAGES) -> Scenario:
    """Return the named parties as clients of a scenario in which labels do not agree."""
    mnist, cifar10 = (
        numpy_rng(seed, "heterogeneity", name).permutation(len(found.images))
        for name, found in zip(("mnist", "cifar10"), sets, strict=True)
    )
    if len(mnist) < 2 * images + 1 or len(cifar10) < images + 1:
        raise UserError(f"The study of heterogeneity needs more than {2 * images} images of MNIST and CIFAR-10.")

    def client(name: str) -> Client:
        foreign = name == "CIFAR-10"
        source, order = (sets[1], cifar10 + len(mnist)) if foreign else (sets[0], mnist)
        first, beyond = images if name.startswith("partition 2") else 0, images if foreign else 2 * images
        train, test = (
            torch.from_numpy(np.sort(part)) for part in (order[first : first + images], order[beyond : beyond + tests])
        )
        count = len(source.classes)
        labelling = torch.tensor(permutation(count, 1) if name.endswith("permuted") else list(range(count)))
        return Client(name, source.name, train, test, test, labelling, source.classes)

    channels = sets[0].images.shape[1]
    every, labels = torch.cat([found.images for found in sets]), torch.cat([found.labels for found in sets])
    return Scenario(every, labels, tuple(map(client, names)), False, (0.5,) * channels, (0.25,) * channels)


def groups_of(roles: Roles) -> dict[str, list[str]]:
    """Return the names of the parameters below the classifier: u, v and mu, or all others together."""
    below = {name: role.kind for name, role in roles.items() if not role.head}
    groups = {kind: [name for name in below if below[name] == kind] for kind in ("u", "v", "mu", "body")}
    return {kind: names for kind, names in groups.items() if names}


def update_distances(now: Tensors, before: Tensors, names: Sequence[str]) -> list[float]:
    """Return the distance of each client's update from the first client's, both as unit vectors."""
    updates = torch.cat([(now[name] - before[name]).flatten(1).double() for name in names], 1)
    unit = torch.nn.functional.normalize(updates, dim=1)
    return [round(value, 4) for value in (unit[1:] - unit[0]).norm(dim=1).tolist()]


def trained_apart(federation: Federation, epochs: int, together: Sequence[str] = ()) -> Record:
    """Train all parties and return the distances of each epoch's updates and of all updates since the start.

    The tensors named in `together` are averaged between the epochs.
    """
    groups = groups_of(federation.roles)
    start = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    record: Record = {kind: {"epoch": [], "total": []} for kind in groups}
    for epoch in range(1, epochs + 1):
        if epoch > 1:
            average(federation, together)
        before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
        _train(federation, epoch)
        for kind, names in groups.items():
            for key, since in (("epoch", before), ("total", start)):
                record[kind][key].append(update_distances(federation.clients.state.common, since, names))
    return record


def _train(federation: Federation, number: int) -> None:
    clients = list(range(len(federation.clients.state)))
    federation.clients.train(number, clients, federation.engine)


def average(federation: Federation, names: Sequence[str]) -> None:
    """Replace the named tensors of all parties by their mean."""
    count = len(federation.clients.state)
    uniform = torch.full((count, count), 1 / count, dtype=torch.float64)
    for name in names:
        federation.clients.state.common[name].copy_(weigh(uniform, federation.clients.state.common[name]))


def averaging(federation: Federation, rounds: int, names: Sequence[str]) -> list[list[int]]:
    """Return the first party's correct answers in every round: after its epochs, and of the average after them."""
    counts = []
    for number in range(1, rounds + 1):
        _train(federation, number)
        correct = []
        for averaged in ((), names):
            average(federation, averaged)
            correct.append(federation.engine.evaluate(number, [0], federation.clients)[0].correct or 0)
        counts.append(correct)
    return counts


def measure_heterogeneity(
    sets: Sets,
    seed: int,
    device: torch.device,
    configs: Mapping[str, Config] | None = None,
    images: int = IMAGES,
    tests: int = TEST_IMAGES,
) -> Record:
    """Return all measurements with one seed."""
    configs = configs or {method: default_config(seed, method) for method in ("stand-alone", "factorized-fl")}
    dense, factorised = configs["stand-alone"], configs["factorized-fl"]
    longer = replace(dense, epochs=AVERAGE_EVERY, rounds=dense.rounds // AVERAGE_EVERY)

    def begin(config: Config, *names: str) -> Federation:
        return build_federation(config, parties(sets, names, seed, images, tests), device)

    record: Record = {
        "what": "heterogeneity",
        "seed": seed,
        "factorised_options": as_record(factorised)["options"],
        "images": images,
        "tests": len(parties(sets, PARTIES[:1], seed, images, tests).clients[0].test),
        "average_every": AVERAGE_EVERY,
        "parties": list(PARTIES),
        "dense": trained_apart(begin(dense, *PARTIES), dense.rounds),
        "factorised": trained_apart(begin(factorised, *PARTIES), dense.rounds),
        "factorised_together": {},
        "averaged": {},
    }
    for other in PARTIES[1:]:
        federation = begin(factorised, PARTIES[0], other)
        shared = groups_of(federation.roles)["u"]
        record["factorised_together"][other] = trained_apart(federation, dense.rounds, shared)
        for name, with_head in (("all", True), ("body", False)):
            federation = begin(longer, PARTIES[0], other)
            names = [n for n, role in federation.roles.items() if role.kind != "stat" and (with_head or not role.head)]
            record["averaged"].setdefault(other, {})[name] = averaging(federation, longer.rounds, names)
    record["alone"] = averaging(begin(longer, PARTIES[0]), longer.rounds, ())
    return record


def run_heterogeneity(seed: int, data: Path | None, device: str, path: Path) -> None:
    """Measure with one seed and write the result."""
    (mnist,), (cifar10,) = load("mnist", data, size=32, channels=3), load("cifar10", data)
    config, place = default_config(seed, "stand-alone"), torch.device(find_device(device))
    write_measured(path, config, str(place), lambda: measure_heterogeneity((mnist, cifar10), seed, place))
