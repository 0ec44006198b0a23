"""Stacks of very many clients, in a file whose pages are read and written only for the participating clients.

A record of the file holds all tensors of one client. The file is sparse: a client that has never taken part has no
record, and its tensors are the initial ones.
"""

import math
import mmap
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.stack import ClientStack
from factorized_fl.core.views import Tensors

_ALIGNED = 8  # bytes: where a tensor of any type may begin
_LARGE = 2**20  # bytes: a record from which a checkpoint is written without a copy of it


class DiskStack(ClientStack):
    """A stack in a temporary file. `wake` gives clients their records; before that only `client` may be read.

    Args:
        initial: the initial tensors by kind of client, such as its number of classes.
        kinds: the kind of each client.
    """

    def __init__(self, initial: Mapping[int, Tensors], kinds: Sequence[int]) -> None:
        first, *others = initial.values()
        alike = {n for n, t in first.items() if all(other[n].shape == t.shape for other in others)}
        self.initial, self.kinds = initial, kinds
        self.template = {name: tensor.detach().clone() for name, tensor in first.items() if name in alike}
        self.apart = {kind: {n: t for n, t in own.items() if n not in alike} for kind, own in initial.items()}
        self.awake = torch.zeros(len(kinds), dtype=torch.bool)
        self._blank = not any(bool(tensor.any()) for tensor in self.template.values())
        common, self._map = _records(self.template, len(kinds))
        super().__init__(common, [self.apart[kind] for kind in kinds])

    def client(self, k: int) -> Tensors:
        """Client k's tensors: views of its record, or the initial ones, which callers must not change."""
        return super().client(k) if self.awake[k] else self.template | self.own[k]

    def wake(self, clients: Sequence[int]) -> None:
        """Gives these clients, none of which has one, their records."""
        for k in clients:
            self.own[k] = {name: tensor.clone() for name, tensor in self.own[k].items()}
        self.awake[list(clients)] = True
        if not self._blank and len(clients):
            for name, stacked in self.common.items():
                stacked[list(clients)] = self.template[name]

    def made(self, make: Callable[[torch.Tensor], torch.Tensor], names: Iterable[str]) -> "DiskStack":
        """A stack that begins with what `make` returns for the initial tensors with these names."""
        wanted = set(names)
        kinds = {kind: {n: make(t) for n, t in own.items() if n in wanted} for kind, own in self.initial.items()}
        return DiskStack(kinds, self.kinds)

    def begun(self, name: str) -> torch.Tensor:
        """Return the initial value of all clients under this name, repeated without a copy."""
        return self.template[name].expand(len(self), *self.template[name].shape)

    def flat(self, prefix: str) -> Tensors:
        """The records of all clients that have one, for a checkpoint: copies of small ones, views of large ones."""
        there, large = self.awake.nonzero().flatten(), self._large
        flat = {} if large else {f"{prefix}/all/{name}": stacked[there] for name, stacked in self.common.items()}
        for k in there.tolist():
            record = self.client(k) if large else self.own[k]
            flat |= {f"{prefix}/{k}/{name}": tensor for name, tensor in record.items()}
        return flat

    def restore(self, prefix: str, tensors: Tensors) -> None:
        """Restores the tensors that `flat` gave; the clients have their records already."""
        there, large = self.awake.nonzero().flatten(), self._large
        for name, stacked in () if large else self.common.items():
            stacked[there] = tensors[f"{prefix}/all/{name}"]
        for k in there.tolist():
            for name, tensor in (self.client(k) if large else self.own[k]).items():
                tensor.copy_(tensors[f"{prefix}/{k}/{name}"])

    @property
    def _large(self) -> bool:
        return sum(tensor.nbytes for tensor in self.template.values()) >= _LARGE

    def release(self) -> None:
        """Lets the kernel take back the memory of records; their content stays in the file."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _records(template: Tensors, count: int) -> tuple[Tensors, mmap.mmap | None]:
    """Tensors [count, ...] like those of the template, all zero, in one file with a record for each client."""
    places, size = dict[str, int](), 0
    for name, tensor in template.items():
        places[name] = size
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
    if not size:
        return {}, None
    try:
        with tempfile.TemporaryFile(prefix="ffl-clients-") as file:  # the map holds the file until it is closed
            file.truncate(size * count)
            mapped = mmap.mmap(file.fileno(), size * count)
    except OSError as error:
        raise UserError(
            f"The tensors of {count} clients need a file of {size * count / 2**30:.1f} GiB in "
            f"'{tempfile.gettempdir()}' ({error.strerror}): set TMPDIR to a folder with more room."
        ) from None
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    found = {}
    for name, tensor in template.items():
        width = tensor.element_size()
        whole = torch.frombuffer(mapped, dtype=tensor.dtype, count=size * count // width)
        strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())]
        found[name] = whole.as_strided((count, *tensor.shape), (size // width, *strides), places[name] // width)
    return found, mapped
