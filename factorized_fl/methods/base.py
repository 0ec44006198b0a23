"""What a method is: a parametrisation, a local step, what travels, and who receives whose."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from factorized_fl.nn import Role
from factorized_fl.options import check

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """Images ready for the model, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Local:
    """What a method may look at while it computes a local step."""

    loss_gradient: Callable[[Tensors, Batch], Tensors]  # of the cross-entropy, at any parameters
    roles: Mapping[str, Role]
    shared: frozenset[str]  # the names that travel
    start: Tensors  # the parameters this round began with


@dataclass(frozen=True)
class Server:
    """What the server knows when it mixes: what it last received from every client, and nothing else."""

    round: int
    stack: Tensors  # name -> [K, ...] for the names that travel
    fingerprints: torch.Tensor | None  # [K, D]
    sizes: torch.Tensor  # training images, float64 [K]
    received: torch.Tensor  # bool [K]: has this client ever answered?
    state: Tensors  # the method's own memory, as `mix` left it
    rng: np.random.Generator


@dataclass(frozen=True)
class Mixing:
    """Who receives whose: row k holds the weights with which client k receives everybody's tensors."""

    matrix: torch.Tensor  # float64 [K, K], rows sum to 1
    similarity: torch.Tensor | None = None  # float64 [K, K], what the choice was based on
    state: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """The dense, non-communicating default; a method overrides what makes it different."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    # The method's row in the table of methods, in words.
    row: ClassVar[tuple[str, str, str, str]]  # parametrisation, local step, what travels, mixing
    batches_per_step: ClassVar[int] = 1
    fingerprint_is_shared: ClassVar[bool] = False  # it travels among the shared tensors already

    def __post_init__(self) -> None:
        check(self)

    def parametrize(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Put the method's parametrisation on a fresh model."""
        return model

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient that the optimiser steps along."""
        return local.loss_gradient(parameters, batches[0])

    def shares(self, role: Role) -> bool:
        """Whether tensors of this role travel. Running statistics never do, and a classifier only if labels agree."""
        return False

    def fingerprint(self, tensors: Tensors, roles: Mapping[str, Role]) -> torch.Tensor | None:
        """What a client sends, besides the shared tensors, to be matched by: a vector, or nothing."""
        return None

    def mix(self, server: Server) -> Mixing:
        """Who receives whose in this round."""
        return Mixing(torch.eye(len(server.sizes), dtype=torch.float64))
