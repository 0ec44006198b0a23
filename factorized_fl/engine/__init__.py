"""Local training and evaluation. Every engine gives the reference engine's results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.roles import Role
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.views import Phase
from factorized_fl.data.scenarios import Scenario
from factorized_fl.engine.training import Training
from factorized_fl.methods import Method
from factorized_fl.protect.budget import Budget
from factorized_fl.tasks.augment import draw
from factorized_fl.tasks.task import Task


@dataclass(frozen=True)
class Work:
    """The parts of a federation that engines use, and the batches on which every engine trains its clients."""

    config: Config
    method: Method
    scenario: Scenario
    models: Mapping[int, nn.Module]  # one for each number of classes, parametrised
    roles: Mapping[str, Role]
    shared: frozenset[str]  # the names that travel
    device: torch.device
    task: Task
    training: Training
    budget: Budget | None = None  # of differentially private training

    def _batch_size(self, k: int) -> int:
        """Return the size of a client's batches; a client with fewer images makes one smaller step per epoch."""
        return min(self.config.batch_size, len(self.scenario.clients[k].train))

    def batch_count(self, k: int) -> int:
        """Return the number of a client's batches in one round; the last incomplete one of an epoch is dropped."""
        return self.config.epochs * self.method.passes * (len(self.scenario.clients[k].train) // self._batch_size(k))

    def step_count(self, k: int) -> int:
        """Return the number of a client's steps in one round, over all phases of its training."""
        each = self.config.epochs and self.batch_count(k) // self.config.epochs
        epochs = [self.config.epochs if phase.epochs is None else phase.epochs for phase in self.method.phases()]
        return sum(max(1, each * count // self.method.batches_per_step) for count in epochs)

    def epoch_steps(self, k: int) -> int:
        """Return the number of a client's steps in one local epoch."""
        return max(1, self.batch_count(k) // (self.config.epochs * self.method.batches_per_step))

    def plain_batches(self, k: int) -> torch.Tensor:
        """Return the positions of a client's training images in complete batches, [n, B], equal in every round.

        They are shuffled because images may be sorted by class, and a batch of one class does not represent the data.
        """
        client, size = self.scenario.clients[k], self._batch_size(k)
        rng = torch_rng(self.config.seed, "plain", client.draws_as(k))
        order = client.train[torch.randperm(len(client.train), generator=rng)]
        return order[: len(order) // size * size].view(-1, size)

    def batches(
        self, round_number: int, k: int, phase: Phase | None = None, index: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield each batch of one phase of a client's round: positions in the pool, and draws of the augmentation."""
        client, size = self.scenario.clients[k], self._batch_size(k)
        epochs = self.config.epochs if phase is None or phase.epochs is None else phase.epochs
        rng = torch_rng(self.config.seed, "train", round_number, client.draws_as(k), *([index] if index else []))
        for _ in range(epochs * self.method.passes):
            order = client.train[torch.randperm(len(client.train), generator=rng)]
            for first in range(0, len(order) - size + 1, size):
                yield order[first : first + size], draw(size, rng) if self.config.augment == "paper" else None
