"""Federations of very many clients, few of which take part in a round (`storage = disk`).

The tensors of clients lie in a file. A round touches its participants and the clients whose last update counts: the
server's half of a round sees these alone, so no step of a round grows with the number of all clients except counters of
one number for each.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from factorized_fl.config import Config
from factorized_fl.core.clients import ClientState, Engine
from factorized_fl.core.disk import DiskStack
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import Load, Payloads
from factorized_fl.core.method import Method
from factorized_fl.core.mixing import Mean, Weights
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.server import Downloads, Losses, ServerState
from factorized_fl.core.views import Mixing, Tensors, Trained

MANY = 2000  # number of clients from which `storage = auto` means disk
SAMPLE = 1000  # clients that are tested at the end, at most, besides the participants of the last round
_AWAKE = "population/awake"
_SMALL = 4096  # largest fingerprint, in numbers, that is kept; larger ones are computed again from a client's record
_ROW = "row"  # the one entry of a method's state that has a number for each client


def on_disk(config: Config, clients: int, device: torch.device, ranks: int) -> bool:
    """Whether the clients' tensors lie in a file; raises UserError if that is asked for and impossible."""
    if config.storage == "memory":
        return False
    method = config.build_method()
    reasons = {
        "needs a CPU": device.type != "cpu",
        "needs a run of one process": ranks > 1,
        "cannot be combined with control": config.control,
        "cannot be combined with oracle": config.oracle != "none",
        "cannot be combined with align": config.align != "off",
        "cannot be combined with privacy_epsilon": bool(config.privacy_epsilon),
        "cannot be combined with protect": config.protect != "none",
        f"does not serve {method.name}, whose clients send more than a model": sends_more(method),
        f"does not serve {method.name}, whose server keeps numbers of every client": method.follows_clients,
    }
    reason = next((text for text, applies in reasons.items() if applies), "")
    if config.storage == "disk" and reason:
        raise UserError(f"storage = 'disk' {reason}: use storage = 'memory'.")
    return config.storage == "disk" or (clients >= MANY and not reason)


def sends_more(method: Method) -> bool:
    """Whether payloads besides the model travel, of which the server keeps one for each client."""
    hooks = ("extra_up", "extra_down")
    return any(getattr(type(method), hook) is not getattr(Method, hook) for hook in hooks)


class Population(ClientState):
    """The clients' half of a round over records in a file."""

    look: Callable[[int], None] | None = None  # fills in a client's fingerprint, when it takes part for the first time

    @property
    def _disk(self) -> list[tuple[str, DiskStack]]:
        return [(prefix, stack) for prefix, stack in self.stacks.items() if isinstance(stack, DiskStack)]

    @property
    def awake(self) -> torch.Tensor:
        """Which clients have taken part, bool [K]."""
        assert isinstance(self.state, DiskStack)
        return self.state.awake

    def wake(self, ks: Sequence[int]) -> None:
        """Gives a record to each of these clients that takes part for the first time."""
        new = [k for k in ks if not self.awake[k]]
        for _, stack in self._disk:
            stack.wake(new)
        if self.look is not None:
            for k in new:
                self.look(k)

    def train(
        self, round_number: int, ks: Sequence[int], engine: Engine, done: Callable[[int], None] = lambda k: None
    ) -> dict[int, Trained]:
        """Trains, then drops the payloads that arrived for this round."""
        trained = super().train(round_number, ks, engine, done)
        self.reports = {}
        return trained

    def release(self) -> None:
        """Frees the memory of records at a round's end."""
        for _, stack in self._disk:
            stack.release()

    @property
    def tensors(self) -> Tensors:
        """The records of the clients that have one, and the numbers of these clients."""
        found = {"trained": self.trained, _AWAKE: self.awake}
        for prefix, stack in self.stacks.items():
            found |= stack.flat(prefix)
        return found

    def load(self, tensors: Tensors) -> None:
        """Restores the state that `tensors` was taken from; no client may have taken part yet."""
        self.trained.copy_(tensors["trained"])
        there = tensors[_AWAKE].nonzero().flatten().tolist()
        for prefix, stack in self._disk:
            stack.wake([k for k in there if not stack.awake[k]])
            stack.restore(prefix, tensors)


class PopulationServer(ServerState):
    """The server's half of a round; the method sees only the clients that count in this round."""

    def __init__(self, *args: Any, clients: Population, **more: Any) -> None:
        super().__init__(*args, **more)
        self.population = clients
        self._vectors: dict[int, torch.Tensor] = {}  # fingerprints that clients last sent, as far as they were needed

    def prepare(self, round_number: int, clients: Sequence[int], losses: Losses) -> Downloads:
        """Mixes for these participants among them and the clients whose last update counts."""
        self.population.wake(clients)
        counted = self.counted.clone()
        row = self.state.get(_ROW)
        if row is not None and not self.updated.any():
            counted |= row > 0
        there = counted.clone()
        there[list(clients)] = True
        members = there.nonzero().flatten()
        place = {k: at for at, k in enumerate(members.tolist())}
        here = copy.copy(self)
        here.stack = here.seen = {name: stacked[members] for name, stacked in self.stack.items()}
        here.start = {name: stacked[members] for name, stacked in self.start.items()}
        here.sizes, here.received, here.recent = self.sizes[members], counted[members], counted[members]
        here.updated, here._prepared = self.updated[members], 0
        here.vectors = self._vectors_of(members.tolist())
        here.state = dict(self.state) | ({} if row is None else {_ROW: row[members]})
        found = ServerState.prepare(
            here, round_number, [place[k] for k in clients], lambda k, tensors: losses(int(members[k]), tensors)
        )
        self._prepared, self._before, self.state = here._prepared, here._before, here.state
        if _ROW in self.state:
            whole = torch.zeros(len(self.sizes), dtype=self.state[_ROW].dtype)
            whole[members] = self.state[_ROW]
            self.state[_ROW] = whole
        return DownloadsOfSome(found, clients, members)

    def _first_vectors(self, vector: torch.Tensor, count: int) -> torch.Tensor | None:
        """Returns None: vectors are computed from the clients' records when they are needed."""
        return None

    def _vectors_of(self, members: Sequence[int]) -> torch.Tensor | None:
        """The fingerprints; a client without an update has the initial one."""
        if not self.stack or (first := self.method.fingerprint(self.initial, self.roles)) is None:
            return None
        for k in members:
            if self.received[k] and k not in self._vectors:
                vector = self.method.fingerprint(self.population.state.client(k), self.roles)
                assert vector is not None
                self._vectors[k] = vector.clone()
        found = torch.stack([self._vectors.get(k, first) for k in members])
        if first.numel() > _SMALL:
            self._vectors.clear()
        return found

    def keep(self, clients: Sequence[int], payload: Any) -> dict[int, Load]:
        """Keeps the updates of some clients."""
        sent = Payloads(list(clients), self.roles)
        for _ in sent.noting(payload):  # the tensors are the clients' own
            continue
        self._note(list(clients))
        for k in clients:
            self._vectors.pop(k, None)
        return sent.loads()


class DownloadsOfSome(Downloads):
    """The downloads of a round, made among the clients `members` that count in it."""

    def __init__(self, inside: Downloads, clients: Sequence[int], members: torch.Tensor) -> None:
        self.inside, self.clients, self.members = inside, list(clients), members
        self.mixing = None if inside.mixing is None else self._part(inside.mixing)

    def _part(self, mixing: Mixing) -> Mixing:
        """The weights of the participants alone, for the run directory."""
        rows = mixing.weights.rows(self.inside.clients[: 1 if isinstance(mixing.weights, Mean) else None])
        return Mixing(
            WeightsOfSome(torch.tensor(self.clients), self.members, rows.float().clone()), downloads=mixing.downloads
        )

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor's name and rows, [n, ...]."""
        return self.inside.items()

    def loads(self) -> dict[int, Load]:
        """The size of each participant's download."""
        return self._named(self.inside.loads())

    def peers(self) -> dict[int, float]:
        """The number of effective peers of each participant."""
        return self._named(self.inside.peers())

    def from_others(self) -> dict[int, float]:
        """The share of other clients in what each participant receives."""
        return self._named(self.inside.from_others())

    def _named(self, found: dict[int, Any]) -> dict[int, Any]:
        return {int(self.members[k]): value for k, value in found.items()}


class WeightsOfSome(Weights):
    """Some rows and columns of the weights: those of `clients`, one row for all where they are equal, and `members`."""

    def __init__(self, clients: torch.Tensor, members: torch.Tensor, some: torch.Tensor) -> None:
        self.clients, self.members, self.some = clients, members, some

    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """The rows of these clients over the members."""
        places = [self.clients.tolist().index(k) for k in clients]
        return self.some.expand(len(self.clients), -1)[places]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The participants, the members, and the rows."""
        return {"clients": self.clients, "members": self.members, "rows": self.some}

    def complaint(self) -> str:
        """Returns an empty string: the complete weights were checked before."""
        return ""


def tested_at_end(received: torch.Tensor, answering: Sequence[int], seed: int) -> list[int]:
    """The participants of the last round and a fixed sample of the clients that have sent an update."""
    known = received.nonzero().flatten().numpy()
    return sorted({*answering, *numpy_rng(seed, "tested").permutation(known)[:SAMPLE].tolist()})
