"""Rows of a tensor that several clients share, given by their positions and not copied."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a tensor, which is not copied: if it is a file mapped into memory, it is never read as a whole."""

    pool: Tensor
    at: Tensor  # int64 [N], the positions of the rows

    @property
    def shape(self) -> torch.Size:
        """The shape that these rows would have as a tensor."""
        return torch.Size((len(self.at), *self.pool.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return self.pool.dtype

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, index: Any) -> Tensor:
        return self.pool[self.at[index]]


class Pool:
    """Collects the inputs and labels of all clients, each of them once."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.labels: list[Tensor] = []
        self._size = 0
        self._held: dict[tuple[int, ...], Tensor] = {}  # positions by the identities of the caller's arrays
        self._whole: dict[int, tuple[int, Tensor, Tensor]] = {}  # by pool: offset, labels, which rows have one

    def place(self, key: tuple[int, ...], x: Tensor | Rows, y: Tensor) -> Tensor:
        """Add a client's examples; return their positions. Arrays that were added under this key are found again."""
        if key not in self._held:
            self._held[key] = self._rows(x, y) if isinstance(x, Rows) else self._append(x, y)
        return self._held[key]

    def _append(self, x: Tensor, y: Tensor) -> Tensor:
        self.inputs.append(x)
        self.labels.append(y)
        self._size += len(x)
        return torch.arange(self._size - len(x), self._size)

    def _rows(self, x: Rows, y: Tensor) -> Tensor:
        """Return the positions of the rows; those to which another client gives other labels are copied."""
        if id(x.pool) not in self._whole:
            labels = y.new_zeros(len(x.pool), *y.shape[1:])
            offset = self._size
            self._append(x.pool, labels)
            self._whole[id(x.pool)] = offset, labels, torch.zeros(len(x.pool), dtype=torch.bool)
        offset, labels, known = self._whole[id(x.pool)]
        if len(x.at.unique()) < len(x) or not torch.equal(labels[x.at][known[x.at]], y[known[x.at]]):
            return self._append(x[:], y)
        labels[x.at], known[x.at] = y, True
        return x.at + offset

    def joined(self) -> tuple[Tensor, Tensor]:
        """Return all inputs and all labels; inputs that came as one tensor are not copied."""
        inputs, labels = (each[0] if len(each) == 1 else torch.cat(each) for each in (self.inputs, self.labels))
        return inputs, labels
