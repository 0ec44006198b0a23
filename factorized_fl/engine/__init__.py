"""How local training is executed. Every engine gives the reference engine's results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.stack import ClientStack
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods import Method, Tensors
from factorized_fl.nn import Role


@dataclass(frozen=True)
class Task:
    """What every engine needs to know of a federation; none of it changes while it runs."""

    config: Config
    method: Method
    scenario: Scenario
    models: Mapping[int, nn.Module]  # one per number of classes, parametrised
    roles: Mapping[str, Role]
    shared: frozenset[str]  # the names that travel
    device: torch.device


@dataclass(frozen=True)
class Trained:
    """What came of a client's local training: mean cross-entropy over its steps, and their number."""

    loss: float
    steps: int


@dataclass(frozen=True)
class Evaluated:
    """What came of testing a client's own model."""

    correct: int
    total: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Share of images classified right."""
        return self.correct / self.total


class Engine(Protocol):
    """Local training and evaluation of some clients, in place on the stack of all."""

    def describe(self) -> dict[str, str | int]:
        """Which engine it is and how it computes convolutions, for the record: a run may ask for more than it gets."""

    def train(
        self,
        round: int,
        clients: Sequence[int],
        state: ClientStack,
        momentum: ClientStack,
        done: Callable[[int], None],
    ) -> dict[int, Trained]:
        """Train each client for its local epochs; `done` is told after each."""

    def evaluate(
        self, round: int, clients: Sequence[int], state: ClientStack, start: ClientStack
    ) -> dict[int, Evaluated]:
        """Test each client's own model on its test images under its own labels.

        A method that tests what a round began with finds that in `start`.
        """

    def tested(self, round: int, k: int, state: ClientStack, start: ClientStack) -> Tensors:
        """The tensors of the model of client k that `evaluate` tests."""

    def confusion(
        self, round: int, clients: Sequence[int], state: ClientStack, start: ClientStack
    ) -> list[torch.Tensor]:
        """Of each client, what `evaluate` tests by true class (rows) and predicted class: int64 [C, C] on the CPU."""

    def validation_losses(self, client: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Mean losses on the images that a client holds out, of its own model with each of M candidates, [M, ...]."""
