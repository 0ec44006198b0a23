"""The wire format: safetensors, with mostly-zero tensors in the smallest of three lossless forms.

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

_MASK, _INDEX, _VALUES = "|mask", "|index", "|values"
_ENTRY = 100  # bytes of a second entry in the header, which makes sparse forms too expensive for small tensors
_TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def encode(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the serialised tensors; `decode` restores the same bits."""
    parts: dict[str, torch.Tensor] = {}
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


def decode(content: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors that `encode` serialised; raises UserError if the content is damaged."""
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
    """Numbers and bytes of a payload, given the shape, type and count of non-zero entries of each tensor."""
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
    """Marks the entries with a bit that is not zero, so that minus zero counts as occupied."""
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
    """The length of a serialised payload with these names, shapes and types, without serialising anything.

    A safetensors file is eight bytes, a JSON header padded to a multiple of eight, and the numbers. The header names
    where the numbers of each tensor begin and end, so it depends on their order: by type, then by name.
    """
    codes = _dtype_codes()
    metadata = _metadata(json.loads(sparse))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, shape, dtype in sorted(signature, key=lambda entry: (list(codes).index(entry[2]), entry[0])):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + math.ceil(len(text) / 8) * 8 + end


@lru_cache(maxsize=1)
def _dtype_codes() -> dict[torch.dtype, str]:
    """The names that safetensors gives to types, in the order in which it stores them; asked of safetensors itself."""
    known = {str(dtype): dtype for dtype in _TYPES}
    content = safetensors.torch.save({name: torch.zeros(1, dtype=dtype) for name, dtype in known.items()})
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    ordered = sorted(header, key=lambda name: header[name]["data_offsets"])
    return {known[name]: header[name]["dtype"] for name in ordered}
