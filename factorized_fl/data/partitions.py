"""Partitions: one dataset, divided between clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.data.clients import ClientData
from factorized_fl.data.rows import Rows
from factorized_fl.data.scenarios import FEWEST_IMAGES, deal_evenly, divide

PARTITIONS = ("iid", "dirichlet", "classes")


def partition(
    data: ClientData | Sequence[ClientData],
    clients: int,
    how: str = "iid",
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    sizes: Sequence[float] = (),
    seed: int = 1,
) -> list[ClientData]:
    """Divide the training examples of `data` among clients, which share its test and validation examples.

    Without test examples each client's are split off by a run's seed.

    Args:
        data: inputs and labels: an `ffl.ClientData`, or a list with one, as `ffl.from_file` gives it.
        clients: the number of clients.
        how: "iid" deals every class evenly, "dirichlet" divides each class by a Dirichlet(alpha) draw, and "classes"
            gives each client some classes, in equal shares with the other clients that have them.
        alpha: the concentration of "dirichlet": the smaller, the more unequal are the clients.
        classes_per_client: the number of classes of a client for "classes".
        sizes: a number for each client, with "iid" only: clients have examples in proportion to these numbers.
        seed: determines which client gets which example.

    Returns:
        The clients.

    Raises:
        UserError: if there are too few examples, or an argument does not fit `how`.
    """
    if not isinstance(data, ClientData):
        if len(data) != 1:
            raise UserError(f"partition divides the data of one client, but there are {len(data)}: join them first.")
        (data,) = data
    labels = np.asarray(data.y)
    if how not in PARTITIONS:
        raise UserError(f"how = {how!r} must be one of {', '.join(PARTITIONS)}.")
    if clients < 1 or len(labels) < FEWEST_IMAGES * clients:
        raise UserError(f"{len(labels)} examples are too few for {clients} clients: each needs {FEWEST_IMAGES}.")
    if sizes and (how != "iid" or len(sizes) != clients or not all(size > 0 for size in sizes)):
        raise UserError(f"sizes = {list(sizes)} must be {clients} numbers above 0, and needs how='iid'.")
    if alpha <= 0:
        raise UserError(f"alpha = {alpha} must be above 0.")
    classes = labels if labels.ndim == 1 and labels.dtype.kind in "iu" else np.zeros(len(labels), np.int64)
    rng = numpy_rng(seed, "partition")
    if how == "classes":
        parts = _by_classes(classes, clients, classes_per_client, rng)
    elif how == "dirichlet":
        parts = divide(classes, clients, alpha, rng)
    elif sizes:
        parts = _by_sizes(len(labels), sizes, rng)
    else:
        parts = deal_evenly(classes, clients, rng)
    named = data.classes
    if named is None and labels.ndim == 1 and labels.dtype.kind in "iu":
        named = [str(label) for label in range(int(labels.max()) + 1)]
    found = []
    for k, at in enumerate(parts):
        if len(at) < FEWEST_IMAGES:
            raise UserError(f"Client {k + 1} would have {len(at)} examples: use fewer clients or more equal sizes.")
        x, y = _rows(data.x, at), _rows(data.y, at)
        found.append(replace(data, x=x, y=y, name=f"client {k + 1}", classes=named))
    return found


def _rows(values: Any, at: np.ndarray) -> Any:
    """Return some rows of an array, a tensor or rows of a pool."""
    if isinstance(values, Rows):
        return Rows(values.pool, values.at[torch.from_numpy(at)])
    return values[at] if isinstance(values, np.ndarray | torch.Tensor) else np.asarray(values)[at]


def _by_classes(labels: np.ndarray, clients: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the positions for each client, which has `count` classes; each class is divided evenly."""
    present = np.unique(labels)
    if not 1 <= count <= len(present):
        raise UserError(f"classes_per_client = {count} must be from 1 to the number of classes, {len(present)}.")
    if clients * count < len(present):
        raise UserError(
            f"{clients} clients with {count} classes each cannot hold all {len(present)} classes: "
            "raise clients or classes_per_client."
        )
    # Clients take turns over the shuffled classes, so that each class has about as many clients as any other.
    turns = np.resize(rng.permutation(present), clients * count).reshape(clients, count)
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in present:
        owners = [k for k in range(clients) if label in turns[k]]
        examples = rng.permutation(np.flatnonzero(labels == label))
        for k, part in zip(owners, np.array_split(examples, len(owners)), strict=True):
            held[k].extend(part.tolist())
    return [np.sort(np.array(part, np.int64)) for part in held]


def _by_sizes(count: int, sizes: Sequence[float], rng: np.random.Generator) -> list[np.ndarray]:
    """Return random positions for each client, in proportion to `sizes`."""
    order = rng.permutation(count)
    cuts = np.round(np.cumsum(np.array(sizes) / sum(sizes))[:-1] * count).astype(int)
    return [np.sort(part) for part in np.split(order, cuts)]
