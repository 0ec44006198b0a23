"""Several servers, each for a part of the clients: for the control of a run, and for oracles.

In the control of a run, the same method, seed and batches are used while every client is a federation of its own. With
an oracle, every true domain is a federation of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch

from factorized_fl.config import Config
from factorized_fl.core.ledger import EXTRA, Load
from factorized_fl.core.mixing import Dense
from factorized_fl.core.server import Downloads, Losses, ServerState
from factorized_fl.core.views import Mixing
from factorized_fl.data.scenarios import Scenario


def separate_clients(config: Config, scenario: Scenario) -> list[range]:
    """Returns the clients of each server, as ranges; empty if one server serves all clients."""
    everyone = range(len(scenario.clients))
    if not config.exchanges:
        return [range(k, k + 1) for k in everyone]
    if config.oracle == "none":
        return []
    # A scenario lists its clients domain by domain.
    parts = [list(part) for _, part in groupby(everyone, key=lambda k: scenario.clients[k].domain)]
    return [range(part[0], part[-1] + 1) for part in parts]


class SeparateServers:
    """Several servers in place of the one that all clients share, each for a range of clients.

    Each server aggregates the tensors of its own clients only. Nothing travels between clients of different servers,
    fingerprints included.
    """

    def __init__(self, servers: Sequence[ServerState], members: Sequence[range]) -> None:
        self.servers, self.members = list(servers), list(members)
        self._prepared = self.servers  # those with a sampled client in this round
        found = [server.vectors for server in servers if server.vectors is not None]
        self.vectors = torch.cat(found) if found else None
        if self.vectors is not None:  # each server's vectors become rows of this tensor
            for server, ks in zip(self.servers, self.members, strict=True):
                server.vectors = self.vectors[ks.start : ks.stop]

    classes = None  # the server of all clients matches classes

    @property
    def received(self) -> torch.Tensor:
        """Return for each client whether it has ever trained: bool [K]."""
        return torch.cat([server.received for server in self.servers])

    def prepare(self, round_number: int, clients: Sequence[int], losses: Losses) -> "SeparateDownloads":
        """Let each server mix for its participants what it last received from its clients."""
        parts = []
        for server, ks in zip(self.servers, self.members, strict=True):

            def own(k: int, candidates: dict[str, torch.Tensor], first: int = ks.start) -> Sequence[float]:
                return losses(first + k, candidates)

            here = [k - ks.start for k in clients if k in ks]
            parts.append(server.prepare(round_number, here, own))
        self._prepared = [part.server for part in parts if part.clients]
        return SeparateDownloads(parts, self.members, clients)

    def begin_updates(self) -> None:
        """Forget which clients sent an update in the round before, where the server has aggregated these updates."""
        for server in self._prepared:
            server.begin_updates()

    def keep(self, clients: Sequence[int], payload: Iterable[tuple[str, torch.Tensor]]) -> dict[int, Load]:
        """Give each client's update, a row of every tensor, to its server; return the size of each."""
        items, loads = list(payload), dict[int, Load]()
        for server, ks in zip(self.servers, self.members, strict=True):
            rows = [row for row, k in enumerate(clients) if k in ks]
            if rows:
                here = [clients[row] - ks.start for row in rows]
                sizes = server.keep(here, ((name, tensor[rows]) for name, tensor in items))
                loads |= {ks.start + k: size for k, size in sizes.items()}
        return loads

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors that change from round to round, under distinct names."""
        named = {f"{index}/{n}": t for index, server in enumerate(self.servers) for n, t in server.tensors.items()}
        return {"received": self.received} | named

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore the state that `tensors` was taken from."""
        for index, server in enumerate(self.servers):
            begin = f"{index}/"
            server.load({n.removeprefix(begin): t for n, t in tensors.items() if n.startswith(begin)})


class SeparateDownloads:
    """The downloads of a round's participants, each from its own server."""

    def __init__(self, parts: Sequence[Downloads], members: Sequence[range], clients: Sequence[int]) -> None:
        self.parts, self.members, self.clients = list(parts), list(members), list(clients)

    @property
    def mixing(self) -> Mixing | None:
        """Return the weights of all servers as one matrix; None if no client received anything from another."""
        found = [part.mixing for part in self.parts]
        if all(mixing is None for mixing in found) or all(len(ks) == 1 for ks in self.members):
            return None
        matrices = [
            torch.eye(len(ks), dtype=torch.float64) if mixing is None else mixing.matrix.double().cpu()
            for mixing, ks in zip(found, self.members, strict=True)
        ]
        return Mixing(Dense(torch.block_diag(*matrices)))

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor's name and rows, [n, ...]; a client without an update keeps the tensors that it has."""
        given = [dict(part.items()) for part in self.parts]
        for name in next((list(items) for items in given if items), []):
            like = next(items[name] for items in given if name in items)
            rows = {
                ks.start + k: items[name][row] if name in items else self._own(part, name, k, like)
                for part, ks, items in zip(self.parts, self.members, given, strict=True)
                for row, k in enumerate(part.clients)
            }
            yield name, torch.stack([rows[k] for k in self.clients])

    def _own(self, part: Downloads, name: str, k: int, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(like[0]) if name.startswith(EXTRA) else part.server.stack[name][k]

    def loads(self) -> dict[int, Load]:
        """Return the size of each participant's download; complete once `items` is."""
        pairs = zip(self.parts, self.members, strict=True)
        return {ks.start + k: load for part, ks in pairs for k, load in part.loads().items()}

    def peers(self) -> dict[int, float]:
        """Return the number of effective peers of each participant, without those that received nothing."""
        pairs = zip(self.parts, self.members, strict=True)
        return {ks.start + k: count for part, ks in pairs for k, count in part.peers().items()}
