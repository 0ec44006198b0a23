"""Named tensors as rows of slots, and the bytes of one client's ciphertexts as a row of fixed length.

A row begins with its kind and its round. Ciphertexts differ in size by some bytes, so each has its length before it and
the row ends with zeros: ledger, checks and checkpoints can treat it as any other tensor.
"""

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from factorized_fl.core.views import Tensors
from factorized_fl.protect.ckks import SLOTS, BadCiphertext

TAGS = 8  # slots of every ciphertext for check sums
ROOM = SLOTS - TAGS  # numbers in a ciphertext
NOTHING, CIPHERTEXTS, NOT_FINITE = 0, 1, 2  # kinds of rows
_HEAD, _LENGTH = struct.Struct("<II"), struct.Struct("<I")


class Layout:
    """The places of tensors in the slots, by their names in a fixed order."""

    def __init__(self, like: Mapping[str, torch.Tensor]) -> None:
        self.like = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in like.items()}
        self.sizes = {name: math.prod(shape) for name, (shape, _) in self.like.items()}
        self.ciphertexts = -(-sum(self.sizes.values()) // ROOM)

    def pack(self, stacked: Mapping[str, torch.Tensor]) -> np.ndarray:
        """The numbers of n clients' tensors [n, ...], float64 [n, ciphertexts, ROOM], with zeros at the end."""
        rows = [stacked[name].detach().cpu().double() for name in self.like]
        numbers = torch.cat([each[:, None].flatten(1) for each in rows], 1)
        flat = np.zeros((len(numbers), self.ciphertexts * ROOM))
        flat[:, : numbers.shape[1]] = numbers.numpy()
        return flat.reshape(len(flat), self.ciphertexts, ROOM)

    def unpack(self, numbers: np.ndarray) -> Tensors:
        """The tensors [n, ...] in the packed numbers of n clients."""
        count, sizes = len(numbers), list(self.sizes.values())
        parts = torch.from_numpy(numbers.reshape(count, self.ciphertexts * ROOM)[:, : sum(sizes)]).split(sizes, 1)
        places = zip(parts, self.like.items(), strict=True)
        return {name: part.reshape(count, *shape).to(dtype) for part, (name, (shape, dtype)) in places}


def row_size(ciphertexts: int, each: int) -> int:
    """The bytes of a row with so many ciphertexts, each of up to so many bytes."""
    return _HEAD.size + ciphertexts * (_LENGTH.size + each)


def to_row(kind: int, round_number: int, contents: Sequence[bytes], size: int) -> torch.Tensor:
    """One client's row, uint8 [size]."""
    parts = [_HEAD.pack(kind, round_number)]
    for content in contents:
        parts += [_LENGTH.pack(len(content)), content]
    joined = b"".join(parts)
    if len(joined) > size:
        raise RuntimeError(f"{len(contents)} ciphertexts need {len(joined):,} bytes, more than the expected {size:,}")
    row = np.zeros(size, dtype=np.uint8)
    row[: len(joined)] = np.frombuffer(joined, dtype=np.uint8)
    return torch.from_numpy(row)


def from_row(row: torch.Tensor, ciphertexts: int) -> tuple[int, int, list[bytes]]:
    """Kind, round and ciphertexts of a row; raises BadCiphertext if it is malformed."""
    content = row.cpu().numpy().tobytes()
    kind, round_number = _HEAD.unpack_from(content)
    if kind not in (NOTHING, CIPHERTEXTS, NOT_FINITE):
        raise BadCiphertext(f"{kind} is not a known kind of row")
    found, at = [], _HEAD.size
    for _ in range(ciphertexts if kind == CIPHERTEXTS else 0):
        (length,) = _LENGTH.unpack_from(content, at) if at + _LENGTH.size <= len(content) else (0,)
        at += _LENGTH.size
        if not 0 < length <= len(content) - at:
            raise BadCiphertext("it holds fewer ciphertexts than are due")
        found.append(content[at : at + length])
        at += length
    if any(content[at:]):
        raise BadCiphertext("it holds more than the ciphertexts that are due")
    return kind, round_number, found
