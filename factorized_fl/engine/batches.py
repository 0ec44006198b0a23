"""The images that a client trains on, batch by batch: the same for every engine."""

from collections.abc import Iterator

import torch

from factorized_fl.config import Config
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.views import Phase
from factorized_fl.data.scenarios import Client
from factorized_fl.methods import Method
from factorized_fl.tasks.augment import draw


def batch_size(config: Config, client: Client) -> int:
    """The size of a client's batches: a client with less than one batch makes one smaller step per epoch."""
    return min(config.batch_size, len(client.train))


def batch_count(config: Config, method: Method, client: Client) -> int:
    """The number of batches of one round; the last incomplete one of an epoch is dropped."""
    return config.epochs * method.passes * (len(client.train) // batch_size(config, client))


def plain_batches(config: Config, client: Client, k: int) -> torch.Tensor:
    """Positions of a client's training images in batches, [n, B], equal in every round; the incomplete one is dropped.

    They are shuffled because images may be sorted by class, and a batch of one class does not represent the data.
    """
    size = batch_size(config, client)
    rng = torch_rng(config.seed, "plain", client.draws_as(k))
    order = client.train[torch.randperm(len(client.train), generator=rng)]
    return order[: len(order) // size * size].view(-1, size)


def batches_of(
    config: Config,
    method: Method,
    client: Client,
    round_number: int,
    k: int,
    phase: Phase | None = None,
    index: int = 0,
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Positions in the pool and draws of the augmentation, if any, of each batch of one phase of a client's round."""
    size = batch_size(config, client)
    epochs = config.epochs if phase is None or phase.epochs is None else phase.epochs
    rng = torch_rng(config.seed, "train", round_number, client.draws_as(k), *([index] if index else []))
    for _ in range(epochs * method.passes):
        order = client.train[torch.randperm(len(client.train), generator=rng)]
        for first in range(0, len(order) - size + 1, size):
            yield order[first : first + size], draw(size, rng) if config.augment == "paper" else None
