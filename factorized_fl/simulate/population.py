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
from factorized_fl.core.mixing import Mean, Weights, finite_rows
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.server import Downloads, Losses, ServerState
from factorized_fl.core.views import Mixing, Tensors, Trained
from factorized_fl.methods.fedavg import FedAvg

# From so many clients on, or so many bytes of their tensors, `storage = auto` means disk.
MANY, HEAVY = 1000, 4 * 2**30
LATEST = 1000  # number of clients with the latest updates that count besides the participants, unless sums serve
SAMPLE = 1000  # clients that are tested at the end, at most, besides the participants of the last round
_AWAKE = "population/awake"
_SMALL = 4096  # largest fingerprint, in numbers, that is kept; larger ones are computed again from a client's record
_SUM, _DIVERGED, _SENT = "population/sum/", "population/diverged/", "population/sent"
_ROW = "row"  # the one entry of a method's state that has a number for each client


def on_disk(config: Config, clients: int, tensors: Tensors, device: torch.device, ranks: int) -> bool:
    """Whether the clients' tensors lie in a file; raises UserError if that is asked for and impossible.

    `tensors` are those of one client; its momentum takes as much memory again.
    """
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
    size = 2 * clients * sum(tensor.nbytes for tensor in tensors.values())
    return config.storage == "disk" or ((clients >= MANY or size >= HEAVY) and not reason)


def sends_more(method: Method) -> bool:
    """Whether payloads besides the model travel, of which the server keeps one for each client."""
    hooks = ("extra_up", "extra_down")
    return any(getattr(type(method), hook) is not getattr(Method, hook) for hook in hooks)


class Population(ClientState):
    """The clients' half of a round over records in a file."""

    look: Callable[[int], None] | None = None  # fills in a client's fingerprint, when it takes part for the first time
    answering: Sequence[int] = ()  # the clients of this round whose update will arrive

    def reset(self, ks: Sequence[int]) -> None:
        """Begins a round of these clients."""
        self.answering = list(ks)
        super().reset(ks)

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
    """The server's half of a round; the method sees only the clients that count in this round.

    Where all clients receive the mean weighted by images, running sums give it without their tensors. Otherwise at most
    `LATEST` clients count besides the participants: those whose updates are the latest.
    """

    def __init__(self, *args: Any, clients: Population, **more: Any) -> None:
        super().__init__(*args, **more)
        self.population = clients
        self._vectors: dict[int, torch.Tensor] = {}  # fingerprints that clients last sent, as far as they were needed
        self._sent = torch.zeros(len(self.sizes), dtype=torch.int64)  # when each client last sent an update
        plain = type(self.method).mix is FedAvg.mix and not (self.forgets or self.min_peers or self.robust != "none")
        self.sums: RunningSums | None = RunningSums(self.stack) if plain else None

    def prepare(self, round_number: int, clients: Sequence[int], losses: Losses) -> Downloads:
        """Mixes for these participants among them and the clients whose last update counts."""
        self.population.wake(clients)
        counted, row = self.counted.clone(), self.state.get(_ROW)
        if row is not None and not self.updated.any():
            counted |= row > 0
        elif self.sums is None and int(counted.sum()) > LATEST:
            latest = self._sent.where(counted, -1).argsort(descending=True, stable=True)[:LATEST]
            counted = torch.zeros_like(counted).index_fill_(0, latest, True)
        there = counted.clone()
        there[list(clients)] = True
        members = there.nonzero().flatten()
        place = {k: at for at, k in enumerate(members.tolist())}
        here = copy.copy(self)
        here.stack = here.seen = SomeRows(self.stack, members)
        if not self.method.reads_tensors:
            here.seen = {name: t.new_empty(len(members), *t.shape[1:], device="meta") for name, t in self.stack.items()}
        here.start = SomeRows(self.start, members)
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
        return DownloadsOfSome(found, clients, members, self._means if self.sums else None)

    def _means(self, count: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The means of all clients' last updates; takes back those that this round's participants will replace."""
        assert self.sums is not None
        total = float(self.sizes[self.received].sum())
        places = [k for k in self.population.answering if self.received[k]]
        for name, stacked in self.stack.items():
            mean = self.sums.mean(name, total)
            self.sums.add(name, stacked[places], -self.sizes[places])
            yield name, mean.expand(count, *stacked.shape[1:])

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
        sent, places = Payloads(list(clients), self.roles), list(clients)
        for name, rows in sent.noting(payload):  # the tensors are the clients' own
            if self.sums is not None and name in self.stack:
                self.sums.add(name, rows, self.sizes[places])
        self._note(places)
        self._sent[places] = self._sent.max() + 1
        for k in clients:
            self._vectors.pop(k, None)
        return sent.loads()

    @property
    def tensors(self) -> Tensors:
        """All that changes from round to round, under distinct names."""
        own = {} if self.sums is None else self.sums.tensors
        return super().tensors | {_SENT: self._sent} | own


class SomeRows(dict[str, torch.Tensor]):
    """Rows of stacked tensors, read when they are asked for: a round needs those of one tensor at a time."""

    def __init__(self, stacks: Tensors, rows: torch.Tensor) -> None:
        super().__init__(stacks)
        self.of = rows

    def __getitem__(self, name: str) -> torch.Tensor:
        return super().__getitem__(name)[self.of]

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        """The names, each with the rows of its tensor."""
        return ((name, self[name]) for name in self)

    def values(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        """The rows of each tensor."""
        return (self[name] for name in self)


class RunningSums:
    """The sums of the last updates of all clients, each times its number of images, in float64."""

    def __init__(self, stacks: Tensors) -> None:
        self.sums = {n: torch.zeros(t.shape[1:], dtype=torch.float64) for n, t in stacks.items()}
        self.diverged = {n: torch.zeros((), dtype=torch.int64) for n in stacks}  # updates that are not finite
        self.types = {n: t.dtype for n, t in stacks.items()}

    def add(self, name: str, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """Adds rows [n, ...] times their weights; a row with a negative weight was added before."""
        flat = rows.double().flatten(1) if rows.dim() > 1 else rows.double()[:, None]
        wrong = ~finite_rows(flat)
        self.sums[name] += (weights @ flat.masked_fill(wrong[:, None], 0.0)).view(self.sums[name].shape)
        self.diverged[name] += (wrong * weights.sign()).sum().long()

    def mean(self, name: str, total: float) -> torch.Tensor:
        """The mean for a sum of weights; NaN if one of the updates is not finite."""
        mean = self.sums[name] / total
        return (mean.fill_(torch.nan) if self.diverged[name] else mean).to(self.types[name])

    @property
    def tensors(self) -> Tensors:
        """All sums, under distinct names."""
        return {_SUM + n: t for n, t in self.sums.items()} | {_DIVERGED + n: t for n, t in self.diverged.items()}


class DownloadsOfSome(Downloads):
    """The downloads of a round, made among the clients `members` that count in it.

    `means` gives the tensors for a number of participants where all of them receive the same.
    """

    def __init__(
        self,
        inside: Downloads,
        clients: Sequence[int],
        members: torch.Tensor,
        means: Callable[[int], Iterator[tuple[str, torch.Tensor]]] | None = None,
    ) -> None:
        self.inside, self.clients, self.members, self.means = inside, list(clients), members, means
        self.mixing = None if inside.mixing is None else self._part(inside.mixing)

    def _part(self, mixing: Mixing) -> Mixing:
        """The weights of the participants alone, for the run directory."""
        rows = mixing.weights.rows(self.inside.clients[: 1 if isinstance(mixing.weights, Mean) else None])
        return Mixing(
            WeightsOfSome(torch.tensor(self.clients), self.members, rows.float().clone()), downloads=mixing.downloads
        )

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor's name and rows, [n, ...]."""
        if self.means is None or self.mixing is None:
            return self.inside.items()
        return self.inside._sent.noting(self.means(len(self.clients)))

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
