"""The control of a run: the same method, seed and batches, while every client is a federation of its own."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from factorized_fl.core.ledger import EXTRA, Load
from factorized_fl.core.server import Losses, ServerState


class SeparateServers:
    """One server for each client, in place of the one server that all clients share.

    Each server aggregates the tensors of its only client, so a client receives what the method makes of its own update.
    Nothing travels between clients, fingerprints included, and no traffic is counted.
    """

    def __init__(self, servers: Sequence[ServerState]) -> None:
        self.servers = list(servers)
        found = [server.vectors for server in servers if server.vectors is not None]
        self.vectors = torch.cat(found) if found else None
        if self.vectors is not None:  # each server's vector becomes a row of this tensor
            for k, server in enumerate(self.servers):
                server.vectors = self.vectors[k : k + 1]

    @property
    def received(self) -> torch.Tensor:
        """Return for each client whether it has ever trained: bool [K]."""
        return torch.cat([server.received for server in self.servers])

    def prepare(self, round_number: int, clients: Sequence[int], losses: Losses) -> "OwnDownloads":
        """Let each participant's server mix what it last received from this client."""
        return OwnDownloads(self.servers, round_number, clients, losses)

    def begin_updates(self) -> None:
        """Forget which clients sent an update in the round before."""
        for server in self.servers:
            server.begin_updates()

    def keep(self, clients: Sequence[int], payload: Iterable[tuple[str, torch.Tensor]]) -> dict[int, Load]:
        """Give each client's update, a row of every tensor, to its own server; return a load of nothing for each."""
        items = list(payload)
        for row, k in enumerate(clients):
            self.servers[k].keep([0], ((name, rows[row : row + 1]) for name, rows in items))
        return {k: Load() for k in clients}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all that changes from round to round, under distinct names."""
        named = {f"{k}/{n}": t for k, server in enumerate(self.servers) for n, t in server.tensors.items()}
        return {"received": self.received} | named

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go back to where `tensors` was taken."""
        for k, server in enumerate(self.servers):
            begin = f"{k}/"
            server.load({n.removeprefix(begin): t for n, t in tensors.items() if n.startswith(begin)})


class OwnDownloads:
    """What the participants of a round receive from their own servers."""

    mixing = None  # there are no weights between clients to record

    def __init__(
        self, servers: Sequence[ServerState], round_number: int, clients: Sequence[int], losses: Losses
    ) -> None:
        def own(k: int) -> Losses:
            return lambda _, candidates: losses(k, candidates)

        self.clients = list(clients)
        self._servers = [servers[k] for k in clients]
        self._each = [servers[k].prepare(round_number, [0], own(k)) for k in clients]

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor's name and rows, [n, ...]; a client without an update keeps the tensors that it has."""
        given = [dict(downloads.items()) for downloads in self._each]
        names = next((list(items) for items in given if items), [])
        for name in names:
            like = next(items[name] for items in given if name in items)
            yield name, torch.cat([items.get(name, self._own(row, name, like)) for row, items in enumerate(given)])

    def _own(self, row: int, name: str, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(like) if name.startswith(EXTRA) else self._servers[row].stack[name]

    def loads(self) -> dict[int, Load]:
        """Return a load of nothing for each participant."""
        return {k: Load() for k in self.clients}
