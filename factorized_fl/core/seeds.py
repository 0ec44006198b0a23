"""Randomness by name: every draw has its own stream, so a resumed run draws what an unbroken one would."""

from hashlib import blake2b

import numpy as np
import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one purpose, such as ``derive(1, "train", round, client)``."""
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_rng(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for one purpose; draws are made on the CPU so that every device sees the same ones."""
    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive(seed, *path))
