"""The interface of a method: parametrisation, local training, sharing, matching and aggregation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from factorized_fl.core.card import Card
from factorized_fl.core.mixing import own_tensors
from factorized_fl.core.options import check
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Batch, Local, Mixing, Phase, Roles, Server, Tensors

Normal = Callable[[Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class Method:
    """The base class of methods: a dense model that trains alone. A method overrides the parts in which it differs."""

    name: ClassVar[str]
    card: ClassVar[Card] = Card()
    needs_agreeing_labels: ClassVar[bool] = False  # compares class numbers of clients, unless classes are matched
    needs_classes: ClassVar[bool] = False  # each example has one class: no regression, no several labels
    class_payloads: ClassVar[frozenset[str]] = frozenset()  # further payloads that have a row for each class
    mixes_first: ClassVar[bool] = False  # `mix` is called before the first round as well, when nothing was received
    needs_start: ClassVar[bool] = False  # `mix` reads `Server.start`
    # The class's own `gradient` gives the same on stacked tensors of several clients, [G, ...], as client by client.
    side_by_side: ClassVar[bool] = True
    # The class's own `gradient` uses tensor operations only. It reads no tensor's value in Python, and no number of
    # `Local` except `epoch_steps` with `counts_steps`. A method that is `side_by_side` is also capturable.
    capturable: ClassVar[bool] = True
    follows_clients: ClassVar[bool] = False  # `Mixing.state` has numbers of every client, besides "row"
    further_models: ClassVar[tuple[str, ...]] = ()  # models that each client keeps beside its own

    def __post_init__(self) -> None:
        check(self)

    # -- parametrisation

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Puts the method's parametrisation on a fresh model and returns it."""
        return model

    # -- local training

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """Initial values of the named tensors that a client keeps between rounds, given its model's initial tensors."""
        return {}

    @property
    def receives(self) -> bool:
        """Whether `receive` is overridden: a client then needs all tensors of a download at once."""
        return type(self).receive is not Method.receive

    def receive(self, local: Local, given: Tensors) -> Tensors:
        """Return the client's tensors at the start of the round, from its own and the download, by the same names."""
        return given

    def phases(self) -> Sequence[Phase]:
        """The parts of a client's local training, in order."""
        return (Phase(),)

    @property
    def batches_per_step(self) -> int:
        """The number of batches that one step consumes."""
        return 1

    @property
    def passes(self) -> int:
        """The number of passes over the data in each local epoch."""
        return 1

    @property
    def holdout(self) -> float:
        """The share of its training images that a client keeps aside for `Server.validation_losses`."""
        return 0.0

    @property
    def tries_validation(self) -> bool:
        """Whether `Server.validation_losses` use the client's validation images; nothing is kept aside then."""
        return False

    @property
    def recalibrates_candidates(self) -> bool:
        """Whether the statistics of each candidate in `Server.validation_losses` are measured on training images."""
        return False

    @property
    def counts_steps(self) -> bool:
        """Whether `gradient` reads `Local.epoch_steps`, which only the reference engine provides."""
        return False

    @property
    def gradients_per_step(self) -> int:
        """How often `gradient` calls `Local.loss_gradient`; each call counts in a privacy budget."""
        return 1

    @property
    def reads_images(self) -> bool:
        """Whether hooks use a client's images in other ways than `Local.loss_gradient` in local steps and `look`."""
        return bool(self.holdout) or self.tries_validation

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient that the optimiser steps along."""
        return local.loss_gradient(parameters, batches[0])

    def finish(self, local: Local) -> Tensors:
        """Returns the payloads of `extra_up` after training; may change `local.tensors` and `local.kept` in place."""
        return {}

    @property
    def personal(self) -> bool:
        """Whether `tested` returns other tensors than those of the trained model."""
        return False

    @property
    def keeps_start(self) -> bool:
        """Whether a client keeps all tensors that the round began with, which `tested` finds in `Local.start`."""
        return False

    def tested(self, local: Local) -> Tensors:
        """With `personal`: the tensors that are evaluated instead of the trained ones, by name."""
        return local.tensors

    # -- sharing

    def shares(self, role: Role) -> bool:
        """Whether tensors of this role travel. A classifier travels only if labels agree."""
        return False

    @property
    def sends_statistics(self) -> bool:
        """Whether the running statistics of BatchNorm travel with the tensors that are shared."""
        return False

    def resets(self, role: Role) -> bool:
        """Whether tensors of this role are set back to their initial values before each round."""
        return False

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """A tensor in the shape and type of each payload that a client sends besides the shared tensors.

        Only names, shapes and types count. `model` are the tensors that have the same shape at all clients, `shared`
        the names of those that travel, and `roles` the purpose of each.
        """
        return {}

    def extra_down(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """A tensor in the shape and type of each payload that a client receives besides the shared tensors."""
        return {}

    # -- matching

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """The vector that a client sends to be matched by, or None."""
        return None

    @property
    def fingerprint_is_shared(self) -> bool:
        """Whether the fingerprint is part of the shared tensors already."""
        return False

    @property
    def looks_at_images(self) -> bool:
        """Whether the fingerprint describes a client's images: the model then has a buffer that is filled once."""
        return False

    def look(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, labels: torch.Tensor, classes: int
    ) -> torch.Tensor:
        """The vector that describes a client's training images, given as the model receives them in tests."""
        raise NotImplementedError(f"{self.name} has looks_at_images and no look")

    @property
    def looks_privately(self) -> bool:
        """Whether `look_privately` takes the place of `look` under differential privacy."""
        return False

    def look_privately(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, noise: float, normal: Normal
    ) -> torch.Tensor:
        """The vector that describes a client's images, with noise of this size for a sensitivity of 1.

        `normal` returns numbers from the standard normal distribution in a given shape.
        """
        raise NotImplementedError(f"{self.name} has looks_privately and no look_privately")

    def plausible(self, fingerprint: torch.Tensor) -> bool:
        """Whether real images can have this fingerprint."""
        return True

    def hide(self, fingerprint: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The fingerprint that leaves the client, after noise or other protection."""
        return fingerprint

    # -- aggregation

    @property
    def reads_tensors(self) -> bool:
        """Whether `mix` or the fingerprint reads shared tensors, which an encrypted aggregation hides.

        A method with a `mix` of its own declares False here if its weights come from sizes and fingerprints alone.
        """
        return type(self).mix is not Method.mix

    def mix(self, server: Server) -> Mixing:
        """The weights with which each client receives the tensors of the others in this round."""
        return Mixing(own_tensors(len(server.sizes)))

    # -- after the last round

    def activated(self, state: Tensors) -> bool | None:
        """Whether the method had its effect, such as a split, given its memory; None without such a condition."""
        return None
