"""How a processor computes: the precision of convolutions and products, and what becomes of freed memory."""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import torch

Casting = Callable[[], AbstractContextManager[object]]


def casting(device: torch.device, half: bool) -> Casting:
    """Return a function that makes a context: convolutions and products inside it use bf16 if `half`.

    Parameters, momentum and statistics stay float32. Casts are not kept from one context to the next, as a captured
    step would go on with the casts of the step that was recorded.
    """
    if not half:
        return nullcontext
    return partial(torch.autocast, device.type, dtype=torch.bfloat16, cache_enabled=False)


def keep_freed_memory() -> None:
    """Ask glibc not to hand memory back to the kernel after every step: page faults cost a fifth of a CPU step."""
    with suppress(OSError, AttributeError):  # another C library: slower, nothing else
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
