"""What a method is: a parametrisation, a local step, what travels, and who receives whose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from factorized_fl.core.options import check, option
from factorized_fl.core.views import Batch, Cost, Local, Mixing, Roles, Server, Tensors
from factorized_fl.nn import Role

SETTLE = "after local training measure BatchNorm's statistics anew on the plain images"

__all__ = ["Batch", "Cost", "Local", "Method", "Mixing", "Roles", "Server", "Tensors"]


@dataclass(frozen=True)
class Method:
    """The dense, non-communicating default; a method overrides what makes it different."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = "unpublished"
    # The method's row in the table of methods, in words: parametrisation, local step, what travels, mixing.
    row: ClassVar[tuple[str, str, str, str]]
    published_gb: ClassVar[float | None] = None  # the paper's cost column for 20 clients and 50 rounds
    needs_start: ClassVar[bool] = False  # `mix` looks at server.start
    # The class's own `gradient` works as well on tensors of several clients at once, [G, ...], without mixing them.
    side_by_side: ClassVar[bool] = True

    settle: bool = option(False, SETTLE)

    def __post_init__(self) -> None:
        check(self)

    # -- parametrisation

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Put the method's parametrisation on a fresh model."""
        return model

    # -- local step

    @property
    def batches_per_step(self) -> int:
        """Batches that one step consumes."""
        return 1

    @property
    def passes(self) -> int:
        """How often each local epoch goes through the data."""
        return 1

    @property
    def holdout(self) -> float:
        """Share of its training images that a client keeps aside for `server.validation_losses`."""
        return 0.0

    @property
    def tries_validation(self) -> bool:
        """Whether `server.validation_losses` are on the client's validation images; nothing is kept aside then."""
        return False

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient that the optimiser steps along."""
        return local.loss_gradient(parameters, batches[0])

    def finish(self, tensors: Tensors, roles: Roles) -> None:
        """Last touch to a client's tensors after its local training, in place."""

    @property
    def tests_start(self) -> bool:
        """Whether `adapt` says what is tested, instead of the trained model."""
        return False

    def adapt(self, local: Local, parameters: Tensors, batch: Batch) -> Tensors:
        """With `tests_start`: the parameters to test, made from those a round began with and one training batch."""
        return parameters

    # -- what travels

    def shares(self, role: Role) -> bool:
        """Whether tensors of this role travel. Running statistics never do, and a classifier only if labels agree."""
        return False

    def resets(self, role: Role) -> bool:
        """Whether tensors of this role go back to their initial values before each round."""
        return False

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """What a client sends, besides the shared tensors, to be matched by: a vector, or nothing."""
        return None

    @property
    def fingerprint_is_shared(self) -> bool:
        """Whether it travels among the shared tensors already."""
        return False

    @property
    def looks_at_images(self) -> bool:
        """Whether a client's fingerprint describes its images: the model then has a buffer that is filled once."""
        return False

    def hide(self, fingerprint: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """What a client makes of the fingerprint of its images before it leaves, if anything."""
        return fingerprint

    @property
    def models_down(self) -> int:
        """Models that a client receives in a round."""
        return 1

    def formula(self, tensors: Tensors, roles: Roles) -> Cost:
        """What the paper's cost formula counts: for dense methods every tensor of the model, statistics included."""
        count = sum(t.numel() for t in tensors.values() if t.dim()) if any(map(self.shares, roles.values())) else 0
        return Cost(count, count)

    # -- who receives whose

    def mix(self, server: Server) -> Mixing:
        """Who receives whose in this round."""
        return Mixing(torch.eye(len(server.sizes), dtype=torch.float64))
