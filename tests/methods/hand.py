"""Views of servers and clients made by hand, so that a test can look at one property of a method."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from factorized_fl.core.views import Batch, Local, Server, Tensors
from factorized_fl.nn import Role


def no_loss(client: int, tensors: Tensors) -> float:
    raise AssertionError("this method must not ask for a validation loss")


def server(
    stack: Mapping[str, Any] | Any,
    *,
    start: Mapping[str, Any] | None = None,
    round_number: int = 2,
    clients: Sequence[int] | None = None,
    received: Sequence[bool] | None = None,
    sizes: Sequence[float] | None = None,
    fingerprints: torch.Tensor | None = None,
    state: Tensors | None = None,
    loss: Callable[[int, Tensors], float] = no_loss,
    seed: int = 0,
) -> Server:
    """A server that has received from all clients; by default all participate, and training began at zero."""
    tensors = {n: torch.as_tensor(t) for n, t in (stack if isinstance(stack, Mapping) else {"w": stack}).items()}
    count = len(next(iter(tensors.values())))
    return Server(
        round=round_number,
        clients=range(count) if clients is None else clients,
        stack=tensors,
        start={n: torch.zeros_like(t) if start is None else torch.as_tensor(start[n]) for n, t in tensors.items()},
        fingerprints=fingerprints,
        sizes=torch.tensor([1.0] * count if sizes is None else sizes, dtype=torch.float64),
        received=torch.tensor([True] * count if received is None else received),
        state=state or {},
        rng=np.random.default_rng(seed),
        validation_losses=each(loss),
    )


def each(loss: Callable[[int, Tensors], float]) -> Callable[[int, Tensors], list[float]]:
    """The losses of a stack of sets of tensors, from a function of one set."""

    def losses(client: int, tensors: Tensors) -> list[float]:
        count = len(next(iter(tensors.values())))
        return [loss(client, {name: stacked[m] for name, stacked in tensors.items()}) for m in range(count)]

    return losses


def local(
    loss_gradient: Callable[[Tensors, Batch], Tensors],
    *,
    shared: Iterable[str] = (),
    start: Tensors | None = None,
    tensors: Tensors | None = None,
    roles: Mapping[str, Role] | None = None,
) -> Local:
    """The view of a client in a local step, or with `tensors` after training."""
    return Local(loss_gradient, roles or {}, frozenset(shared), start or {}, tensors or {})


NOTHING = Batch(torch.empty(0), torch.empty(0))
