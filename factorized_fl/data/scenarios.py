"""Scenarios: the images and labels of every client (paper, section 4.1 and appendix B)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import PERMUTATION_SEED, numpy_rng
from factorized_fl.data.images import ImageSet

FEWEST_IMAGES = 2  # BatchNorm needs two values to compute a variance


@dataclass(frozen=True)
class Client:
    """One client: the positions of its images in the scenario's pool, and its own labelling of the classes."""

    name: str
    domain: str
    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor
    labelling: torch.Tensor  # class c of the domain has the label labelling[c] at this client
    classes: tuple[str, ...]  # names, in this client's own order
    # Candidate models are evaluated on these.
    holdout: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    seat: int | None = None  # its index for random draws, if that differs from its position in the scenario

    own_labelling: torch.Tensor | None = None  # the client's own one, where `labelling` is the common one instead

    def draws_as(self, k: int) -> int:
        """Return the index for the random draws of this client, which is at position k of the scenario."""
        return k if self.seat is None else self.seat


@dataclass(frozen=True)
class Scenario:
    """All clients, and the pool of images that they share."""

    images: torch.Tensor  # uint8 [N, C, H, W], or with `arrays` float32 or int64 [N, ...]
    labels: torch.Tensor  # int64 [N], the class within the image's domain, or float32 [N, C], numbers to predict
    clients: tuple[Client, ...]
    labels_agree: bool  # one domain and one labelling, without which classifiers must not be shared
    mean: tuple[float, ...]
    std: tuple[float, ...]
    arrays: bool = False  # inputs reach the network as they are: not scaled, normalised or augmented

    def targets(self, k: int, positions: torch.Tensor) -> torch.Tensor:
        """Return the targets of some examples: classes as client k numbers them, or numbers as they are."""
        labels = self.labels[positions]
        return labels if labels.is_floating_point() else self.clients[k].labelling[labels]

    @property
    def sizes(self) -> torch.Tensor:
        """The number of training images of every client, float64 [K]."""
        return torch.tensor([len(client.train) for client in self.clients], dtype=torch.float64)


def permutation(classes: int, client: int, seed: int = PERMUTATION_SEED) -> list[int]:
    """Return the client's labelling: class c gets label permutation[c] (the paper's tables 4 and 5, from 0)."""
    labels = list(range(classes))
    random.Random(seed + client).shuffle(labels)
    return labels


def build_scenario(
    domains: Sequence[ImageSet],
    normalisation: tuple[tuple[float, ...], tuple[float, ...]],
    *,
    clients: int,
    partition: str = "iid",
    alpha: float = 0.5,
    permuted: bool = False,
    clients_per_domain: Sequence[int] = (),
    images_per_client: int = 0,
    test_images: int = 0,
    train_share: float = 0.8,
    permutation_seed: int = PERMUTATION_SEED,
    seed: int = 1,
) -> Scenario:
    """Return a scenario: every domain is split into training, validation and test images, divided among its clients.

    `partition` is "iid" (every class is dealt evenly) or "dirichlet" (each class is divided by a Dirichlet(alpha)
    draw). `clients_per_domain` sets the number of clients of each domain; by default the numbers are equal.
    At most `images_per_client` training images of a client and `test_images` of a domain are used, drawn at random.
    """
    if 0 < images_per_client < FEWEST_IMAGES:
        raise UserError(f"images_per_client is {images_per_client}, but each needs at least {FEWEST_IMAGES}; 0 is all.")
    sides = {tuple(domain.images.shape[2:]): domain.name for domain in domains}
    if len(sides) > 1:
        found = " and ".join(f"those of '{name}' {height} x {width}" for (height, width), name in sides.items())
        raise UserError(f"Images of all domains must have one size, but {found} pixels: set image_size.")
    counts = _clients_of(domains, clients, clients_per_domain)
    members: list[Client] = []
    offset = 0
    for domain, count in zip(domains, counts, strict=True):
        if len(domain.classes) < 2:
            raise UserError(f"'{domain.name}' has only one class: there is nothing to learn from it.")
        rng = numpy_rng(seed, "scenario", domain.name)
        train, validation, test = (part + offset for part in split(domain, train_share, rng))
        if test_images:
            draw = numpy_rng(seed, "test images", domain.name)
            validation, test = (np.sort(draw.permutation(part)[:test_images]) for part in (validation, test))
        labels = domain.labels.numpy()[train - offset]
        if len(train) < FEWEST_IMAGES * count:
            raise UserError(
                f"{count} clients are too many for the {len(train)} training images of '{domain.name}': "
                f"each needs at least {FEWEST_IMAGES}; ask for fewer clients or a larger train_share."
            )
        deal = deal_evenly(labels, count, rng) if partition == "iid" else divide(labels, count, alpha, rng)
        for held in deal:
            k = len(members)
            size = len(domain.classes)
            labelling = permutation(size, k, permutation_seed) if permuted else list(range(size))
            own = train[held]
            if images_per_client:
                own = own[np.sort(rng.permutation(len(own))[:images_per_client])]
            members.append(
                Client(
                    name=f"client {k + 1}",
                    domain=domain.name,
                    train=torch.from_numpy(own),
                    validation=torch.from_numpy(validation),
                    test=torch.from_numpy(test),
                    labelling=torch.tensor(labelling),
                    classes=tuple(domain.classes[labelling.index(label)] for label in range(size)),
                )
            )
        offset += len(domain.images)
    images, labels = domains[0].images, domains[0].labels
    if len(domains) > 1:
        images, labels = torch.cat([each.images for each in domains]), torch.cat([each.labels for each in domains])
    labels_agree = len(domains) == 1 and not permuted
    return Scenario(images, labels, tuple(members), labels_agree, *normalisation)


def score_validation(scenario: Scenario) -> Scenario:
    """Return a scenario whose test images are the validation images, for choosing options without the test images."""
    _check_validation(scenario, "to be scored on: add some, or set score=test")
    return replace(scenario, clients=tuple(replace(client, test=client.validation) for client in scenario.clients))


def _check_validation(scenario: Scenario, advice: str) -> None:
    for client in scenario.clients:
        if not len(client.validation):
            raise UserError(f"{client.name} has no validation images {advice}.")


def scramble(scenario: Scenario, count: int, seed: int) -> Scenario:
    """Return a scenario whose last `count` clients train on copies of their images with random labels."""
    images, labels, clients = [scenario.images], [scenario.labels], list(scenario.clients)
    if count > len(clients):
        raise UserError(f"scrambled = {count}, but there are only {len(clients)} clients.")
    size = len(scenario.images)
    for k in range(len(clients) - count, len(clients)):
        client = clients[k]
        drawn = numpy_rng(seed, "scramble", k).integers(len(client.classes), size=len(client.train))
        images.append(scenario.images[client.train])
        labels.append(torch.from_numpy(drawn).to(scenario.labels))
        clients[k] = replace(client, train=torch.arange(size, size + len(client.train)))
        size += len(client.train)
    return replace(scenario, images=torch.cat(images), labels=torch.cat(labels), clients=tuple(clients))


def align_labels(scenario: Scenario) -> Scenario:
    """Return a scenario in which all clients of a domain number its classes alike.

    Labels then agree inside each domain. Raise UserError if domains differ in their numbers of classes.
    """
    sizes = {client.domain: len(client.classes) for client in scenario.clients}
    if len({*sizes.values()}) > 1:
        counts = " and ".join(f"'{domain}' has {size}" for domain, size in sizes.items())
        raise UserError(f"oracle = 'aligned' needs equal numbers of classes, but {counts}: use oracle = 'groups'.")
    clients = tuple(
        replace(
            client,
            classes=tuple(client.classes[label] for label in client.labelling.tolist()),
            labelling=torch.arange(len(client.labelling)),
            own_labelling=client.labelling,
        )
        for client in scenario.clients
    )
    return replace(scenario, clients=clients, labels_agree=True)


def pool_domains(scenario: Scenario) -> Scenario:
    """Return a scenario with one client for each domain, which has the images of all clients of the domain."""
    pooled = []
    for domain, members in groupby(scenario.clients, key=lambda client: client.domain):
        clients = list(members)  # a scenario lists its clients domain by domain
        first = clients[0]
        pooled.append(
            Client(
                name=domain,
                domain=domain,
                train=torch.cat([client.train for client in clients]).unique(),
                validation=torch.cat([client.validation for client in clients]).unique(),
                test=torch.cat([client.test for client in clients]).unique(),
                holdout=torch.cat([client.holdout for client in clients]).unique(),
                labelling=torch.arange(len(first.labelling)),
                classes=tuple(first.classes[label] for label in first.labelling.tolist()),
            )
        )
    return replace(scenario, clients=tuple(pooled), labels_agree=False)


def try_validation(scenario: Scenario) -> Scenario:
    """Return a scenario in which candidate models are evaluated on the validation images of each client."""
    _check_validation(scenario, "to evaluate models on: add some, or set tried_on=holdout")
    return replace(scenario, clients=tuple(replace(client, holdout=client.validation) for client in scenario.clients))


def hold_out(scenario: Scenario, share: float, seed: int) -> Scenario:
    """Return a scenario in which each client holds out a share of its training images, at least one."""
    clients = []
    for k, client in enumerate(scenario.clients):
        most = len(client.train) - FEWEST_IMAGES
        if most < 1:
            raise UserError(
                f"{client.name} has {len(client.train)} training images, too few to hold one out: "
                f"every client needs at least {FEWEST_IMAGES + 1} with this method."
            )
        count = min(max(1, round(share * len(client.train))), most)
        order = torch.from_numpy(numpy_rng(seed, "holdout", client.draws_as(k)).permutation(len(client.train)))
        kept = client.train[order[count:].sort().values]
        clients.append(replace(client, train=kept, holdout=client.train[order[:count].sort().values]))
    return replace(scenario, clients=tuple(clients))


def _clients_of(domains: Sequence[ImageSet], clients: int, per_domain: Sequence[int]) -> list[int]:
    if per_domain:
        if len(per_domain) != len(domains) or sum(per_domain) != clients:
            raise UserError(
                f"clients_per_domain = {list(per_domain)} must name {len(domains)} domains and add up to "
                f"clients = {clients}."
            )
        return list(per_domain)
    if clients < len(domains):
        raise UserError(
            f"clients is {clients}, but there are {len(domains)} domains: each domain needs at least one client."
        )
    share, rest = divmod(clients, len(domains))
    return [share + (index < rest) for index in range(len(domains))]


def split(domain: ImageSet, train_share: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return the positions of training, validation and test images: the source's own split, or else a random one."""
    if domain.split is not None:
        given = domain.split.numpy()
        return tuple(np.flatnonzero(given == part) for part in range(3))
    order = rng.permutation(len(domain.images))
    train = int(train_share * len(order))
    test = train + (len(order) - train) // 2
    if train == 0 or test in (train, len(order)):
        raise UserError(
            f"'{domain.name}' has {len(order)} images, too few to split with train_share = {train_share:g}: "
            "add images, or choose another share."
        )
    return np.sort(order[:train]), np.sort(order[test:]), np.sort(order[train:test])


def deal_evenly(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the positions for each client; class counts and totals differ by at most one between clients."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(by_class[client::clients]) for client in range(clients)]


def divide(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the positions for each client; each class is divided by a Dirichlet(alpha) draw over the clients."""
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        images = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        if not np.isfinite(shares).all():  # a tiny alpha underflows; in the limit one client has the whole class
            shares = np.eye(clients)[rng.integers(clients)]
        cuts = np.round(np.cumsum(shares)[:-1] * len(images)).astype(int)
        for client, part in enumerate(np.split(images, cuts)):
            held[client].extend(part.tolist())
    # Missing images come from the richest: redrawing would change all other clients' parts and might never end.
    for client in range(clients):
        while len(held[client]) < FEWEST_IMAGES:
            richest = max(range(clients), key=lambda other: len(held[other]))
            held[client].append(held[richest].pop())
    return [np.sort(np.array(part)) for part in held]
