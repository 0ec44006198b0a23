"""The number of threads with which a CPU computes a batch."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn

from factorized_fl.core.roles import LAYERS

# Operations of a batch's forward pass that are worth a thread. With fewer, threads wait for each other more than they
# compute: two of them make the demo's steps, 22 million operations each, a sixth faster on an idle machine of two cores
# and nearly four times slower beside a process that keeps one core busy (benchmarks/threads.py).
WORTH_A_THREAD = 40e6

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def worthwhile_threads(work: float) -> int:
    """Return the number of threads that a batch keeps busy, given the operations of its forward pass.

    It is at most PyTorch's present number.
    """
    return max(1, min(int(work / WORTH_A_THREAD), torch.get_num_threads()))


@torch.no_grad()
def operations(model: nn.Module, example: torch.Tensor) -> int:
    """Return the multiplications and additions of one forward pass of `example`, in evaluation mode.

    Counted are Linear layers, convolutions, transposed convolutions and MultiheadAttention: two operations for each
    weight and each place (pixel or token) where it is applied, and those of the attention matrices. PyTorch's own
    counter is not used because it imports Triton wherever that is installed.
    """
    total = 0

    def add(layer: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.MultiheadAttention):
            total += _attention(layer, *(args + tuple(named[key] for key in ("query", "key", "value") if key in named)))
        else:
            # Each number on the side of the weight's first axis takes part in one product with a slice of the weight.
            numbers = args[0] if isinstance(layer, _TRANSPOSED) else output
            total += 2 * numbers.numel() * cast(torch.Tensor, layer.weight).shape[1:].numel()

    counted = (*LAYERS, *_TRANSPOSED, nn.MultiheadAttention)
    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, counted):
                hooks.enter_context(layer.register_forward_hook(add, with_kwargs=True))
        model.eval()(example)
    return total


def _attention(layer: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, *_: Any) -> int:
    """Return the operations of the four projections and of the two products with the attention matrix."""
    width = layer.embed_dim
    queries, keys = query.numel() // width, key.numel() // layer.kdim
    tokens = key.shape[-2] if key.ndim == 2 or layer.batch_first else key.shape[0]
    projections = 2 * queries * width + keys * (layer.kdim + layer.vdim)
    return 2 * width * (projections + 2 * queries * tokens)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads inside an operation, and restore the previous number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
