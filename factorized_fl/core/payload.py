"""What goes over the wire: safetensors, with mostly-zero tensors in whichever lossless form is smallest.

A tensor of n numbers of which z are not zero costs, besides its entry in the header: dense n numbers; as a bit mask
n bits and z numbers; as an index z positions (of the narrowest type that holds n) and z numbers.
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from factorized_fl.core.errors import UserError
from factorized_fl.core.views import Tensors

_MASK, _INDEX, _VALUES = "|mask", "|index", "|values"
_ENTRY = 100  # a second entry in the header costs about so many bytes: not worth it for small tensors
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def encode(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Serialise; `decode` gives the very same bits back."""
    parts: Tensors = {}
    sparse = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().flatten()
        there = occupied(flat)
        form = _form(flat.numel(), int(there.sum()), flat.dtype)
        if form == "dense":
            parts[name] = flat.view(tensor.shape)
            continue
        sparse[name] = list(tensor.shape)
        parts[name + _VALUES] = flat[there]
        if form == "mask":
            parts[name + _MASK] = torch.from_numpy(np.packbits(there.numpy()))
        else:
            parts[name + _INDEX] = there.nonzero().flatten().to(_index_type(flat.numel()))
    return safetensors.torch.save(parts, _metadata(sparse))


def decode(content: bytes) -> Tensors:
    """Read what `encode` wrote."""
    try:
        parts = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        sparse = json.loads(header.get("__metadata__", {}).get("sparse", "{}"))
        tensors = {name: tensor for name, tensor in parts.items() if "|" not in name}
        for name, shape in sparse.items():
            values = parts[name + _VALUES]
            flat = torch.zeros(math.prod(shape), dtype=values.dtype)
            if name + _MASK in parts:
                there = np.unpackbits(parts[name + _MASK].numpy(), count=len(flat)).astype(bool)
                flat[torch.from_numpy(there)] = values
            else:
                flat[parts[name + _INDEX].long()] = values
            tensors[name] = flat.view(shape)
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        raise UserError(f"A payload is damaged and cannot be read ({error}).") from None
    return tensors


def measure(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype, int]]) -> tuple[int, int]:
    """Numbers and bytes of a payload, given each tensor's shape, type and count of entries that are not zero."""
    if not shapes:
        return 0, 0
    parts: list[tuple[str, tuple[int, ...], torch.dtype]] = []
    sparse = {}
    numbers = 0
    for name, (shape, dtype, nonzero) in shapes.items():
        count = math.prod(shape)
        form = _form(count, nonzero, dtype)
        numbers += count if form == "dense" else nonzero
        if form == "dense":
            parts.append((name, shape, dtype))
            continue
        sparse[name] = list(shape)
        parts.append((name + _VALUES, (nonzero,), dtype))
        if form == "mask":
            parts.append((name + _MASK, (math.ceil(count / 8),), torch.uint8))
        else:
            parts.append((name + _INDEX, (nonzero,), _index_type(count)))
    return numbers, _length(tuple(parts), json.dumps(sparse))


def occupied(tensor: torch.Tensor) -> torch.Tensor:
    """Where the bits are not all zero: minus zero is kept."""
    return tensor.view(_BITS[tensor.element_size()]) != 0


def _form(count: int, nonzero: int, dtype: torch.dtype) -> str:
    costs = _costs(count, nonzero, dtype)
    return min(costs, key=lambda form: costs[form])


def _costs(count: int, nonzero: int, dtype: torch.dtype) -> dict[str, int]:
    size = dtype.itemsize
    return {
        "dense": count * size,
        "mask": math.ceil(count / 8) + nonzero * size + _ENTRY,
        "index": nonzero * (_index_type(count).itemsize + size) + _ENTRY,
    }


@lru_cache(maxsize=4096)
def data_bytes(shape: tuple[int, ...], dtype: torch.dtype, nonzero: int) -> int:
    """Bytes of one tensor's numbers in a payload, without its entry in the header."""
    count = math.prod(shape)
    form = _form(count, nonzero, dtype)
    return _costs(count, nonzero, dtype)[form] - (0 if form == "dense" else _ENTRY)


def _index_type(count: int) -> torch.dtype:
    """The narrowest type that holds every position."""
    return next(t for t in (torch.uint8, torch.uint16, torch.uint32) if count <= 2 ** (8 * t.itemsize))


def _metadata(sparse: Mapping[str, list[int]]) -> dict[str, str] | None:
    return {"sparse": json.dumps(sparse)} if sparse else None


@lru_cache(maxsize=4096)
def _length(signature: Signature, sparse: str) -> int:
    """The length depends on names, shapes and types alone: serialise zeros of them once."""
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in signature}
    return len(safetensors.torch.save(tensors, _metadata(json.loads(sparse))))
