"""The communication ledger: numbers sent, bytes as really serialised, and what the paper's formula counts."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from factorized_fl.federation.build import Federation
from factorized_fl.federation.payload import measure, occupied
from factorized_fl.methods import Mixing, Tensors

BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class Load:
    """One payload."""

    parameters: int = 0
    bytes: int = 0

    def __mul__(self, times: int) -> "Load":
        return Load(self.parameters * times, self.bytes * times)


@dataclass(frozen=True)
class Traffic:
    """One client's communication in one round."""

    up_parameters: int = 0
    down_parameters: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    up_formula: int = 0
    down_formula: int = 0

    def record(self) -> dict[str, int]:
        """For the metrics."""
        return asdict(self)


def loads(tensors: Tensors, clients: Sequence[int], fingerprint: int = 0) -> dict[int, Load]:
    """What each client's row of the stacked tensors costs to send, with a fingerprint of so many numbers."""
    nonzero = {name: occupied(t.detach()).flatten(1).sum(1).tolist() for name, t in tensors.items()}
    found = {}
    for k in clients:
        shapes = {name: (tuple(t.shape[1:]), t.dtype, nonzero[name][k]) for name, t in tensors.items()}
        if fingerprint:
            shapes["fingerprint"] = ((fingerprint,), torch.float32, fingerprint)
        found[k] = Load(*measure(shapes))
    return found


def download_loads(federation: Federation, clients: Sequence[int], mixing: Mixing | None) -> dict[int, Load]:
    """What was sent to the clients just now; to be asked before they train."""
    if mixing is None:
        return dict.fromkeys(clients, Load())
    one = loads(_shared(federation), clients)
    if mixing.downloads is None:
        return one
    return {k: one[k] * int(mixing.downloads[k]) for k in clients}


def upload_loads(federation: Federation, clients: Sequence[int]) -> dict[int, Load]:
    """What the clients send after training."""
    if not federation.shared:
        return dict.fromkeys(clients, Load())
    vector = federation.method.fingerprint(federation.state.client(0), federation.roles)
    separate = vector is not None and not federation.method.fingerprint_is_shared
    return loads(_shared(federation), clients, vector.numel() if vector is not None and separate else 0)


def _shared(federation: Federation) -> Tensors:
    return {name: t for name, t in federation.state.common.items() if name in federation.shared}


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
