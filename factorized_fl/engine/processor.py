"""How a processor computes: the precision of convolutions and products, repeatable algorithms, and freed memory."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

import torch
from torch import nn

from factorized_fl.tasks.inputs import Inputs

# Operations of a batch's forward pass from which bf16 is faster: with 0.6 billion a step takes 0.85 of its time, with
# 0.01 billion 1.16, because casts cost more than they save (benchmarks/cpu_precision.py).
WORTH_BF16 = 0.2e9

Casting = Callable[[], AbstractContextManager[object]]


def casting(device: torch.device, half: bool) -> Casting:
    """Return a function that makes a context: convolutions and products inside it use bf16 if `half`.

    Parameters, momentum and statistics stay float32. Casts are not cached between contexts: a captured step
    would go on using the casts of the step that was captured.
    """
    if not half:
        return nullcontext
    return partial(torch.autocast, device.type, dtype=torch.bfloat16, cache_enabled=False)


def computes_in_bf16(choice: str, work: float) -> bool:
    """Return whether a CPU uses bf16, given the option `cpu_precision` and the operations of a batch's forward pass.

    "auto" uses it if the processor has instructions for it and the batch is large enough to gain from them.
    """
    supported = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "amx_tile"))
    return choice == "bf16" or (choice == "auto" and work >= WORTH_BF16 and any(found() for found in supported))


@torch.no_grad()
def takes_channels_last(inputs: Inputs, models: Iterable[nn.Module]) -> bool:
    """Return whether inputs are to have channels last in memory: images, and on a CPU other inputs of convolutions.

    Networks that reshape activations by `view` do not accept that order; `reshape` and `flatten` copy if necessary.
    """
    example = inputs.plain(torch.zeros(2, dtype=torch.int64))
    convolved = any(isinstance(layer, nn.Conv2d) for model in models for layer in model.modules())
    if example.dim() != 4 or not example.is_floating_point() or (inputs.arrays and (example.is_cuda or not convolved)):
        return False
    try:
        for model in models:
            model.eval()(example.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True


def keep_freed_memory() -> None:
    """Ask glibc not to hand memory back to the kernel after every step: page faults cost a fifth of a CPU step."""
    with suppress(OSError, AttributeError):  # another C library: training is only slower
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


@contextmanager
def repeatable() -> Iterator[None]:
    """Within the context, a GPU uses only algorithms that add up in the same order every time."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
