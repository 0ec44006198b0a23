"""The communication ledger: numbers sent, bytes as really serialised, and what the paper's formula counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from factorized_fl.core.payload import data_bytes, measure, occupied
from factorized_fl.core.roles import Role
from factorized_fl.methods.fingerprints import NAME as FINGERPRINT
from factorized_fl.simulate.build import Federation

BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class Load:
    """One payload."""

    parameters: int = 0
    bytes: int = 0
    roles: Mapping[str, int] = field(default_factory=dict)  # bytes of the numbers by role; the rest is the header

    def __mul__(self, times: int) -> "Load":
        roles = {role: count * times for role, count in self.roles.items()}
        return Load(self.parameters * times, self.bytes * times, roles)


@dataclass(frozen=True)
class Traffic:
    """One client's communication in one round."""

    up_parameters: int = 0
    down_parameters: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    up_formula: int = 0
    down_formula: int = 0
    up_roles: Mapping[str, int] = field(default_factory=dict)
    down_roles: Mapping[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For the metrics."""
        return asdict(self)


class Payloads:
    """What several clients send or are sent, tensor by tensor, until it is all measured."""

    def __init__(self, clients: Sequence[int], role_of: Mapping[str, Role]) -> None:
        self.clients, self.role_of = clients, role_of
        self.entries: list[tuple[str, tuple[int, ...], torch.dtype, list[int]]] = []

    def add(self, name: str, rows: torch.Tensor) -> None:
        """One tensor, a row per client."""
        nonzero = occupied(rows.detach()).flatten(1).sum(1).tolist()
        self.entries.append((name, tuple(rows.shape[1:]), rows.dtype, nonzero))

    def loads(self, copies: torch.Tensor | None = None) -> dict[int, Load]:
        """Each client's load; `copies` [K] says how often each is sent, if not once."""
        found = {}
        for row, k in enumerate(self.clients):
            shapes = {name: (shape, dtype, nonzero[row]) for name, shape, dtype, nonzero in self.entries}
            found[k] = Load(*measure(shapes), self._by_role(row)) * (1 if copies is None else int(copies[k]))
        return found

    def _by_role(self, row: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, shape, dtype, nonzero in self.entries:
            # The fingerprint is among a client's tensors as a statistic, which none of those that travel is.
            kind = name if name == FINGERPRINT or name not in self.role_of else self.role_of[name].kind
            sizes[kind] = sizes.get(kind, 0) + data_bytes(shape, dtype, nonzero[row])
        return sizes


def upload_loads(federation: Federation, clients: Sequence[int]) -> dict[int, Load]:
    """What the clients send after training."""
    method, state = federation.method, federation.state
    if not federation.shared or not clients:
        return dict.fromkeys(clients, Load())
    sent = Payloads(clients, federation.roles)
    for name, stacked in state.common.items():
        if name in federation.shared:
            sent.add(name, stacked[list(clients)])
    vectors = [method.fingerprint(state.client(k), federation.roles) for k in clients]
    if not method.fingerprint_is_shared and all(vector is not None for vector in vectors):
        sent.add(FINGERPRINT, torch.stack([vector for vector in vectors if vector is not None]))
    return sent.loads()


def traffic(federation: Federation, k: int, down: Load, up: Load | None) -> Traffic:
    """The ledger's entry for a client that was chosen; `up` is missing if it did not answer."""
    cost = federation.method.formula(federation.state.client(k), federation.roles)
    return Traffic(
        up_parameters=up.parameters if up else 0,
        down_parameters=down.parameters,
        up_bytes=up.bytes if up else 0,
        down_bytes=down.bytes,
        up_formula=cost.up if up else 0,
        down_formula=cost.down,
        up_roles=up.roles if up else {},
        down_roles=down.roles,
    )


def formula_bytes(entries: Iterable[tuple[int, int, int]]) -> dict[str, int]:
    """The paper's formula over entries of (round, up, down), by both conventions of counting.

    B counts every upload and download; A leaves out the first round's download, which nothing preceded.
    """
    a = b = 0
    for round, up, down in entries:
        b += (up + down) * BYTES_PER_NUMBER
        a += (up + (down if round > 1 else 0)) * BYTES_PER_NUMBER
    return {"formula_a_bytes": a, "formula_b_bytes": b}


def summarise_traffic(records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Totals of a run's ledger."""
    records = list(records)
    names = ("up_parameters", "down_parameters", "up_bytes", "down_bytes")
    totals = {name: sum(record[name] for record in records) for name in names}
    return totals | formula_bytes((r["round"], r["up_formula"], r["down_formula"]) for r in records)
