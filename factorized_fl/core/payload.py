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

_DENSE, _VALUES, _MASK, _INDEX = "", "|values", "|mask", "|index"  # suffixes of the names of a tensor's parts
_ENTRY = 100  # bytes of a second entry in the header, which makes sparse forms too expensive for small tensors
_TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Shape = tuple[int, ...]
Form = dict[str, tuple[Shape, torch.dtype]]  # shape and type of each part of a tensor, by the suffix of its name


def encode(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the serialised tensors; `decode` restores the same bits."""
    parts: dict[str, torch.Tensor] = {}
    sparse = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().flatten()
        there = occupied(flat)
        form = _form(tuple(tensor.shape), int(there.sum()), flat.dtype)
        if _DENSE in form:
            parts[name] = flat.view(tensor.shape)
            continue
        sparse[name] = list(tensor.shape)
        parts[name + _VALUES] = flat[there]
        if _MASK in form:
            parts[name + _MASK] = torch.from_numpy(np.packbits(there.numpy()))
        else:
            parts[name + _INDEX] = there.nonzero().flatten().to(form[_INDEX][1])
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


def measure(shapes: Mapping[str, tuple[Shape, torch.dtype, int]]) -> tuple[int, int]:
    """Numbers and bytes of a payload, given the shape, type and count of non-zero entries of each tensor."""
    if not shapes:
        return 0, 0
    forms = {name: _form(shape, nonzero, dtype) for name, (shape, dtype, nonzero) in shapes.items()}
    # Every form begins with the numbers.
    numbers = sum(math.prod(next(iter(form.values()))[0]) for form in forms.values())
    parts = tuple((name + suffix, *part) for name, form in forms.items() for suffix, part in form.items())
    sparse = {name: list(shapes[name][0]) for name, form in forms.items() if _DENSE not in form}
    return numbers, _length(parts, json.dumps(sparse))


def occupied(tensor: torch.Tensor) -> torch.Tensor:
    """Marks the entries with a bit that is not zero, so that minus zero counts as occupied."""
    return tensor.view(_BITS[tensor.element_size()]) != 0


@lru_cache(maxsize=4096)
def _form(shape: Shape, nonzero: int, dtype: torch.dtype) -> Form:
    """The smallest form of a tensor."""
    count = math.prod(shape)
    index = next(t for t in (torch.uint8, torch.uint16, torch.uint32) if count <= 2 ** (8 * t.itemsize))
    values = ((nonzero,), dtype)
    forms: tuple[Form, ...] = (
        {_DENSE: (shape, dtype)},
        {_VALUES: values, _MASK: ((math.ceil(count / 8),), torch.uint8)},
        {_VALUES: values, _INDEX: ((nonzero,), index)},
    )
    return min(forms, key=lambda form: _bytes(form) + _ENTRY * (len(form) - 1))


def _bytes(form: Form) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in form.values())


def data_bytes(shape: Shape, dtype: torch.dtype, nonzero: int) -> int:
    """Bytes of one tensor's numbers in a payload, without its entry in the header."""
    return _bytes(_form(shape, nonzero, dtype))


def _metadata(sparse: Mapping[str, list[int]]) -> dict[str, str] | None:
    return {"sparse": json.dumps(sparse)} if sparse else None


@lru_cache(maxsize=4096)
def _length(parts: tuple[tuple[str, Shape, torch.dtype], ...], sparse: str) -> int:
    """The length of a serialised payload with these names, shapes and types, without serialising anything.

    A safetensors file is eight bytes, a JSON header padded to a multiple of eight, and the numbers. The header names
    where the numbers of each tensor begin and end, so it depends on their order: by type, then by name.
    """
    codes = _dtype_codes()
    metadata = _metadata(json.loads(sparse))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, shape, dtype in sorted(parts, key=lambda entry: (list(codes).index(entry[2]), entry[0])):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + math.ceil(len(text) / 8) * 8 + end


@lru_cache(maxsize=1)
def _dtype_codes() -> dict[torch.dtype, str]:
    """The names that safetensors gives to types, in the order in which it stores them, from a file that it writes."""
    known = {str(dtype): dtype for dtype in _TYPES}
    content = safetensors.torch.save({name: torch.zeros(1, dtype=dtype) for name, dtype in known.items()})
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    ordered = sorted(header, key=lambda name: header[name]["data_offsets"])
    return {known[name]: header[name]["dtype"] for name in ordered}
