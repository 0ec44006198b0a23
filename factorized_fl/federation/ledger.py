"""What communication costs: parameters counted and bytes as they would really be serialised."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import safetensors.torch
import torch


@dataclass(frozen=True)
class Traffic:
    """One client's communication in one round."""

    up_parameters: int = 0
    down_parameters: int = 0
    up_bytes: int = 0
    down_bytes: int = 0


def parameters(payload: Mapping[str, torch.Tensor]) -> int:
    """Numbers in a payload."""
    return sum(tensor.numel() for tensor in payload.values())


def payload_bytes(payload: Mapping[str, torch.Tensor]) -> int:
    """Length of the payload as safetensors: its header counts, too. Nothing to send costs nothing."""
    if not payload:
        return 0
    return _dense_bytes(tuple((name, tuple(t.shape), t.dtype) for name, t in payload.items()))


@cache
def _dense_bytes(signature: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]) -> int:
    """The length depends on names, shapes and types alone, so one real serialisation serves all rounds."""
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in signature}
    return len(safetensors.torch.save(tensors))
