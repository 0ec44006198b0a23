"""Secret random numbers: which examples a step samples, and the noise that it adds.

A party that could compute them could subtract the noise. So SHAKE-256, a cryptographic function, expands them from a
secret. A few outputs of PyTorch's or NumPy's generators would reveal all others.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

_BITS = 52  # bits of a uniform number: the largest number, 1 - 2**-53, is still below 1 in float64


class Draws:
    """The random numbers of one purpose; the same secret and path give the same numbers."""

    def __init__(self, secret: int, *path: int | str) -> None:
        self._key = "/".join(str(part) for part in ("draws", secret, *path))

    def uniform(self, name: str, count: int) -> torch.Tensor:
        """Numbers between 0 and 1, both excluded, float64 [count]; each name has numbers of its own."""
        content = hashlib.shake_256(f"{self._key}/{name}".encode()).digest(8 * count)
        whole = np.frombuffer(content, dtype="<u8") >> np.uint64(64 - _BITS)
        return torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-_BITS)

    def normal(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Numbers from the standard normal distribution, float64."""
        return torch.special.ndtri(self.uniform(name, math.prod(shape))).reshape(*shape)
