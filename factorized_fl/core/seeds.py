"""Random streams by name: each purpose has its own stream, so a resumed run draws the same numbers as an unbroken one.

PyTorch and NumPy are imported when a generator is made, because processes without tensors import this module too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

_GLOBAL = threading.RLock()
PERMUTATION_SEED = 1234  # the paper's "fixed global seed" of the label permutations


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one purpose, such as ``derive(1, "train", round_number, client)``."""
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_rng(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for one purpose. Draws are made on the CPU so that all devices see the same numbers."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    import numpy as np

    return np.random.default_rng(derive(seed, *path))


@contextmanager
def global_rng(seed: int, *path: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Gives PyTorch's global generators the stream of one purpose, for one thread at a time, and restores them."""
    import torch

    devices = [device] if device is not None and device.type == "cuda" else []
    with _GLOBAL, torch.random.fork_rng(devices=devices):
        seed_global(derive(seed, *path), device)
        yield


def seed_global(seed: int, device: torch.device | None) -> None:
    """Seeds PyTorch's global generators, of the CPU and of this device; with None those of all devices.

    ``torch.manual_seed`` gives the same streams, but it keeps a stack trace for each kind of device that is not in use,
    which takes 3 ms.
    """
    import torch

    if device is None:
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
