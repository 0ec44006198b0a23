"""How many threads compute a batch on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Operations of a batch's forward pass that are worth a thread. With fewer, threads wait for each other more than they
# compute: two of them make the demo's steps, 22 million operations each, a sixth faster on an idle machine of two cores
# and nearly four times slower beside a process that keeps one core busy (benchmarks/threads.py).
WORTH_A_THREAD = 40e6


def worthwhile_threads(model: nn.Module, image: torch.Tensor, batch_size: int) -> int:
    """As many as there are, but no more than a batch of such images gives work to."""
    work = batch_size * operations(model, image)
    return max(1, min(int(work / WORTH_A_THREAD), torch.get_num_threads()))


@torch.no_grad()
def operations(model: nn.Module, image: torch.Tensor) -> int:
    """Multiplications and additions of the layers with weights when one image passes: two per weight and place.

    PyTorch's own counter would import Triton, wherever that is installed.
    """
    found = 0

    def add(layer: nn.Conv2d | nn.Linear, inputs: object, output: torch.Tensor) -> None:
        nonlocal found
        found += 2 * layer.weight.numel() * output[0, 0].numel()

    hooks = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model.eval()(image)
    for hook in hooks:
        hook.remove()
    return found


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """So many threads inside an operation, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
