"""What a method sees and what it answers: batches, a local step's surroundings, the server's view, a mixing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from factorized_fl.core.roles import Role

Tensors = dict[str, torch.Tensor]
Roles = Mapping[str, Role]


@dataclass(frozen=True)
class Batch:
    """Images ready for the model, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Local:
    """What a method may look at while it computes a local step."""

    loss_gradient: Callable[[Tensors, Batch], Tensors]  # of the cross-entropy, at any parameters
    roles: Roles
    shared: frozenset[str]  # the names that travel
    start: Tensors  # the parameters this round began with


@dataclass(frozen=True)
class Server:
    """What the server knows when it mixes: what it last received from every client, and nothing else."""

    round: int
    clients: Sequence[int]  # who takes part in this round
    stack: Tensors  # name -> [K, ...] for the names that travel
    start: Tensors  # the same names: where each client's last training began (only if the method asks)
    fingerprints: torch.Tensor | None  # [K, D]
    sizes: torch.Tensor  # training images, float64 [K]
    received: torch.Tensor  # bool [K]: has this client ever answered?
    state: Tensors  # the method's own memory, as `mix` left it
    rng: np.random.Generator
    # Client k's losses on its held-out images with each of M sets of shared tensors, [M, ...], in its own model.
    validation_losses: Callable[[int, Tensors], Sequence[float]]


@dataclass(frozen=True)
class Mixing:
    """Who receives whose: row k holds the weights with which client k receives everybody's tensors."""

    matrix: torch.Tensor  # float64 [K, K], rows sum to 1
    similarity: torch.Tensor | None = None  # float64 [K, K], what the choice was based on
    state: Tensors = field(default_factory=dict)
    downloads: torch.Tensor | None = None  # models sent to each client [K]; one each if not given
    revert: torch.Tensor | None = None  # bool [K]: go back to where the last training began, whatever the row says
    others: Tensors = field(default_factory=dict)  # matrices of the tensors that are mixed otherwise, by name


@dataclass(frozen=True)
class Cost:
    """Numbers that the paper's cost formula counts for one client and one round, each way."""

    up: int
    down: int
