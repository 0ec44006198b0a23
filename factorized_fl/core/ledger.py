"""The communication ledger: numbers sent, bytes as serialised, and the cost by the paper's formula."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from factorized_fl.core.payload import data_bytes, measure, occupied
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Cost

BYTES_PER_NUMBER = 4
FINGERPRINT = "fingerprint"  # the payload with the vector that clients are matched by
EXTRA = "extra/"  # prefix of the names of payloads besides the model's tensors
ENCRYPTED = "encrypted/"  # prefix of the names of payloads of an encrypted aggregation
CIPHERTEXTS = f"{ENCRYPTED}ciphertexts"  # uint8 [bytes] of each client, up and down
CLAIMED_WEIGHTS, CLAIMED_ROUNDS = f"{ENCRYPTED}weights", f"{ENCRYPTED}rounds"  # [K] of each client, down only


@dataclass(frozen=True)
class Load:
    """The size of one payload."""

    parameters: int = 0
    bytes: int = 0
    roles: Mapping[str, int] = field(default_factory=dict)  # bytes of the numbers by role; the rest is the header

    def __mul__(self, times: int) -> "Load":
        roles = {role: count * times for role, count in self.roles.items()}
        return Load(self.parameters * times, self.bytes * times, roles)


@dataclass(frozen=True)
class Traffic:
    """One client's communication in one round, as fields of a line of metrics."""

    up_parameters: int = 0
    down_parameters: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    up_formula: int = 0
    down_formula: int = 0
    up_roles: Mapping[str, int] = field(default_factory=dict)
    down_roles: Mapping[str, int] = field(default_factory=dict)


def count_traffic(down: Load, up: Load | None, cost: Cost) -> Traffic:
    """The entry of a sampled client; `up` is None if it sent no update."""
    formula, up = (cost.up, up) if up else (0, Load())
    numbers = (up.parameters, down.parameters, up.bytes, down.bytes, formula, cost.down)
    return Traffic(*numbers, up.roles, down.roles)


class Payloads:
    """The payloads of several clients, counted tensor by tensor and measured at the end."""

    def __init__(self, clients: Sequence[int], role_of: Mapping[str, Role]) -> None:
        self.clients, self.role_of = clients, role_of
        self.entries: list[tuple[str, tuple[int, ...], torch.dtype, list[int]]] = []

    def add(self, name: str, rows: torch.Tensor) -> None:
        """Counts one tensor, given as a row for each client."""
        repeated = rows.stride(0) == 0  # one row, repeated without a copy
        nonzero = occupied((rows[:1] if repeated else rows).detach())[:, None].flatten(1).sum(1).tolist()
        nonzero = nonzero * len(rows) if repeated else nonzero
        self.entries.append((name, tuple(rows.shape[1:]), rows.dtype, nonzero))

    def noting(self, items: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the items and counts each of them."""
        for name, rows in items:
            self.add(name, rows)
            yield name, rows

    def loads(self, copies: torch.Tensor | None = None) -> dict[int, Load]:
        """Each client's load; `copies` [K] says how often each payload is sent, if not once."""
        if not self.entries:
            return dict.fromkeys(self.clients, Load())
        found, sizes = {}, dict[tuple[int, ...], Load]()  # most payloads of a round have the same size
        for row, k in enumerate(self.clients):
            counts = tuple(nonzero[row] for _, _, _, nonzero in self.entries)
            if counts not in sizes:
                shapes = {name: (shape, dtype, nonzero[row]) for name, shape, dtype, nonzero in self.entries}
                sizes[counts] = Load(*measure(shapes), self._by_role(row))
            found[k] = sizes[counts] * (1 if copies is None else int(copies[k]))
        return found

    def _by_role(self, row: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, shape, dtype, nonzero in self.entries:
            kind = next((prefix[:-1] for prefix in (EXTRA, ENCRYPTED) if name.startswith(prefix)), name)
            # A fingerprint may be a buffer of the model, but a payload lists it separately.
            if kind == name and name != FINGERPRINT and name in self.role_of:
                kind = self.role_of[name].kind
            sizes[kind] = sizes.get(kind, 0) + data_bytes(shape, dtype, nonzero[row])
        return sizes


def measured(
    items: Iterable[tuple[str, torch.Tensor]], role_of: Mapping[str, Role]
) -> tuple[dict[str, torch.Tensor], Load]:
    """One client's payload as named tensors, and its size, from items with a leading axis of one row."""
    payload = Payloads([0], role_of)
    tensors = {name: rows[0] for name, rows in payload.noting(items)}
    return tensors, payload.loads()[0]


def formula_bytes(entries: Iterable[tuple[int, int, int]]) -> dict[str, int]:
    """The paper's formula over entries of (round, up, down): B counts all of them, A no download of the first round."""
    a = b = 0
    for round_number, up, down in entries:
        b += (up + down) * BYTES_PER_NUMBER
        a += (up + (down if round_number > 1 else 0)) * BYTES_PER_NUMBER
    return {"formula_a_bytes": a, "formula_b_bytes": b}


def total_traffic(records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The totals of a run's ledger."""
    records = list(records)
    names = ("up_parameters", "down_parameters", "up_bytes", "down_bytes")
    totals = {name: sum(record[name] for record in records) for name in names}
    return totals | formula_bytes((r["round"], r["up_formula"], r["down_formula"]) for r in records)
