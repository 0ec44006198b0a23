"""The server's half of a round: sample participants, mix the tensors last received, count the traffic.

One `ServerState` serves every driver. A simulation gives it the clients' own tensors (`aliased=True`), so that no
tensor is stored twice; a coordinator gives it separate tensors and stores the updates in them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from factorized_fl.core.answers import checked_mixing
from factorized_fl.core.classes import CLASS, ClassSharing, with_room
from factorized_fl.core.dominance import effective_peers, keep_own_below, others_share
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS, EXTRA, FINGERPRINT, Load, Payloads
from factorized_fl.core.method import Method
from factorized_fl.core.robust import clip_mixing, robust_rows
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.views import Mixing, Roles, Server, Tensors

Losses = Callable[[int, Tensors], Sequence[float]]
_ON_CPU, _WITH_STACK = "method/", "method-with-stack/"  # before the names of the method's state in a checkpoint


class Blind(Protocol):
    """Weighted sums of encrypted tensors; `protect` has the implementation."""

    size: int  # the bytes of a client's row
    seconds: dict[str, float]  # time spent on each kind of work, since it was last set to 0

    def mix(self, mixing: Mixing, stacked: torch.Tensor, clients: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the payload of each participant, [n, ...], given the rows of all clients, uint8 [K, size]."""


@dataclass(frozen=True)
class Sampling:
    """How the participants of each round are drawn."""

    seed: int
    clients: int
    fraction: float = 1.0
    dropout: float = 0.0

    @property
    def per_round(self) -> int:
        """The number of sampled clients: the fraction, rounded half up, at least one."""
        return max(1, int(self.fraction * self.clients + 0.5))

    def draw(self, round_number: int) -> tuple[list[int], list[int]]:
        """The sampled clients, and those that send an update: the others fail after their download, unchanged."""
        rng = numpy_rng(self.seed, "choose", round_number)
        sampled = sorted(rng.permutation(self.clients)[: self.per_round].tolist())
        return sampled, [client for client in sampled if rng.random() >= self.dropout]


class Downloads:
    """The downloads of a round's participants: a mixing, and the rows made from it, one tensor at a time."""

    def __init__(self, server: "ServerState", clients: Sequence[int], mixing: Mixing | None) -> None:
        self.server, self.clients, self.mixing = server, list(clients), mixing
        self._sent = Payloads(self.clients, server.roles)

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor's name and rows, [n, ...]: all rows of a tensor are made before any is used."""
        return self._sent.noting(self._items())

    def _items(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.mixing is None:
            return
        mixing, server = self.mixing, self.server
        if server.blind is not None:
            yield from server.blind.mix(mixing, server.stack[CIPHERTEXTS], self.clients)
            return
        back = [] if mixing.revert is None else [row for row, k in enumerate(self.clients) if mixing.revert[k]]
        for name, stacked in server.stack.items():
            if name in mixing.rows:
                rows = mixing.rows[name].to(stacked).expand(len(self.clients), *stacked.shape[1:])
            elif server.robust in ("median", "trim"):
                rows = robust_rows(server.robust, mixing.others.get(name, mixing.weights), stacked, self.clients)
            else:
                rows = mixing.others.get(name, mixing.weights).apply(stacked, self.clients)
            if back:
                rows = rows.clone()
                rows[back] = server.start[name][[self.clients[row] for row in back]]
            yield name, rows
        for name, like in server.extra_down.items():
            yield EXTRA + name, mixing.extra[name].to(like).expand(len(self.clients), *like.shape)
        if server.classes is not None:
            weights = {name: mixing.others.get(name, mixing.weights) for name in server.classes.rows.names}
            given = server.classes.downloads(server.extra, weights, self.clients, back)
            yield from ((EXTRA + name, rows) for name, rows in given.items())

    def loads(self) -> dict[int, Load]:
        """The size of each participant's download; complete once `items` is."""
        return self._sent.loads(None if self.mixing is None else self.mixing.downloads)

    def peers(self) -> dict[int, float]:
        """The number of effective peers of each participant; empty if nothing is mixed in this round."""
        if self.mixing is None:
            return {}
        return self._unless_reverted(effective_peers(self.mixing.weights, self.clients))

    def from_others(self) -> dict[int, float]:
        """The share of other clients in what each participant receives; empty if nothing is mixed in this round."""
        if self.mixing is None:
            return {}
        return self._unless_reverted(others_share(self.mixing.weights, self.clients))

    def _unless_reverted(self, found: torch.Tensor) -> dict[int, float]:
        """The numbers by participant; 0 for a participant that reverts to the start of its last training."""
        assert self.mixing is not None
        back = self.mixing.revert
        pairs = zip(self.clients, found.tolist(), strict=True)
        return {k: 0.0 if back is not None and back[k] else value for k, value in pairs}


class ServerState:
    """The server's state between rounds: the tensors last received, and the method's own memory."""

    def __init__(
        self,
        method: Method,
        roles: Roles,
        *,
        seed: int,
        stack: Tensors,
        initial: Tensors,
        sizes: torch.Tensor,
        start: Tensors | None = None,
        aliased: bool = False,
        classes: ClassSharing | None = None,
        room: int = 0,
        min_peers: float = 0.0,
        blind: Blind | None = None,
        robust: str = "none",
        forgets: bool = False,
    ) -> None:
        count = len(sizes)
        self.method, self.roles, self.seed, self.aliased = method, roles, seed, aliased
        self.min_peers, self.blind, self.robust = min_peers, blind, robust
        self.stack, self.initial, self.sizes = stack, initial, sizes
        self.seen = stack  # the method's view; with encryption, reading a value raises an error
        if blind is not None:
            self.seen = {name: torch.empty_like(stacked, device="meta") for name, stacked in stack.items()}
            self.stack = {CIPHERTEXTS: torch.zeros(count, blind.size, dtype=torch.uint8)}
        self.start = start or {}
        self.received = torch.zeros(count, dtype=torch.bool)
        self.updated = torch.zeros(count, dtype=torch.bool)
        self.forgets = forgets  # if true, only the updates of the last round that had any count
        self.recent = torch.zeros(count, dtype=torch.bool)  # the clients whose updates count if `forgets`
        self.state: Tensors = {}
        self._prepared = 0  # the round that was last prepared
        self._before: Tensors = {}  # the method's state before that round
        vector = method.fingerprint(initial, roles) if stack else None
        self.vectors = None if vector is None else self._first_vectors(vector, count)
        shared = frozenset(self.seen)
        self.classes = classes
        up = with_room(method.extra_up(initial, shared, roles), method.class_payloads, room)
        up |= {} if classes is None else classes.up(initial)
        self.extra = {n: torch.zeros(count, *like.shape).to(like) for n, like in up.items()}
        self.extra_down = with_room(method.extra_down(initial, shared, roles), method.class_payloads, room)

    def _first_vectors(self, vector: torch.Tensor, count: int) -> torch.Tensor | None:
        """Return the vectors that match clients before they have sent anything, [K, D]."""
        return vector.expand(count, -1).clone()

    @property
    def counted(self) -> torch.Tensor:
        """The clients whose last update counts, bool [K]."""
        return self.recent if self.forgets else self.received

    @property
    def sends_fingerprints(self) -> bool:
        """Whether clients send a vector to be matched by, besides the shared tensors."""
        return self.vectors is not None and not self.method.fingerprint_is_shared

    def prepare(self, round_number: int, clients: Sequence[int], losses: Losses) -> Downloads:
        """Mixes the tensors last received for these participants; before any update there is nothing to send.

        Preparing the same round again, for other participants, begins with the same state of the method.
        """
        nothing = not (self.seen or self.extra) or not (self.received.any() or self.method.mixes_first)
        if not clients or nothing:
            return Downloads(self, clients, None)
        if round_number != self._prepared:
            self._prepared, self._before = round_number, self.state
        if self.classes is not None:
            self.classes.match(round_number, self.extra, self.received)
        view = Server(
            round=round_number,
            clients=clients,
            stack=self.seen,
            start=self.start,
            fingerprints=self.vectors,
            sizes=self.sizes,
            received=self.counted,
            state=self._before,
            rng=numpy_rng(self.seed, "mix", round_number),
            validation_losses=losses,
            initial={name: self.initial[name] for name in self.seen},
            updated=self.updated & self.counted,
            extra={name: tensor for name, tensor in self.extra.items() if not name.startswith(CLASS)},
            labels=None if self.classes is None else self.classes.matches.labels,
        )
        mixing = self._guarded(checked_mixing(self.method, view, self.extra_down), clients)
        self.state = {n: t.clone(memory_format=torch.contiguous_format) for n, t in mixing.state.items()}
        return Downloads(self, clients, mixing)

    def _guarded(self, mixing: Mixing, clients: Sequence[int]) -> Mixing:
        """The mixing after clipping, in which participants with too few effective peers keep their own tensors."""
        if self.blind is not None and (mixing.others or mixing.rows or mixing.extra or mixing.revert is not None):
            raise UserError(
                f"The mix of {self.method.name} must be weights alone, the same for all tensors, where protect = "
                "'encrypt': use other options of the method, or protect = 'none'."
            )
        if self.robust == "clip":
            mixing = clip_mixing(mixing, self.stack, clients)
        if not self.min_peers:
            return mixing
        others = {name: keep_own_below(weights, clients, self.min_peers) for name, weights in mixing.others.items()}
        return replace(mixing, weights=keep_own_below(mixing.weights, clients, self.min_peers), others=others)

    def begin_updates(self) -> None:
        """Forgets which clients sent an update in the round before."""
        self.updated = torch.zeros_like(self.updated)

    def keep(self, clients: Sequence[int], payload: Iterable[tuple[str, torch.Tensor]]) -> dict[int, Load]:
        """Keeps the updates of some clients, [n, ...] under the names that travel; returns the size of each."""
        places = list(clients)
        sent = Payloads(places, self.roles)
        for name, rows in sent.noting(payload):
            if name == FINGERPRINT:
                assert self.vectors is not None
                self.vectors[places] = rows
            elif name.startswith(EXTRA):
                self.extra[name.removeprefix(EXTRA)][places] = rows
            elif not self.aliased:
                self.stack[name][places] = rows
        self._read_shared_vectors(places)
        self._note(places)
        return sent.loads()

    def _note(self, places: list[int]) -> None:
        """Marks these clients as having sent an update."""
        if not self.updated.any():  # the first of this round
            self.recent = torch.zeros_like(self.recent)
        for flags in (self.received, self.updated, self.recent):
            flags[places] = True

    def _read_shared_vectors(self, clients: Iterable[int]) -> None:
        """Takes the vectors of some clients from their shared tensors, if they are part of these."""
        if self.vectors is not None and self.method.fingerprint_is_shared:
            for k in clients:
                vector = self.method.fingerprint({name: stacked[k] for name, stacked in self.stack.items()}, self.roles)
                assert vector is not None
                self.vectors[k] = vector

    def expected(self, k: int, begun_with: Tensors) -> Tensors:
        """Return the reference for client k's update: its tensors at the round's start, or else its last update."""
        begun_with = begun_with if self.blind is None else {}  # a download has ciphertexts of another size
        expected = {name: begun_with.get(name, stacked[k]) for name, stacked in self.stack.items()}
        if self.sends_fingerprints:
            assert self.vectors is not None
            expected[FINGERPRINT] = self.vectors[k]
        return expected | {EXTRA + name: stacked[k] for name, stacked in self.extra.items()}

    @property
    def tensors(self) -> Tensors:
        """All tensors of the server that change from round to round, under distinct names."""
        own = {"received": self.received, "updated": self.updated}
        own |= {"recent": self.recent} if self.forgets else {}
        own |= {f"extra/{name}": tensor for name, tensor in self.extra.items()}
        own |= {} if self.classes is None else self.classes.tensors
        if not self.aliased:
            if self.sends_fingerprints:
                assert self.vectors is not None
                own["vectors"] = self.vectors
            own["sizes"] = self.sizes
            own |= {f"stack/{name}": tensor for name, tensor in self.stack.items()}
            own |= {f"start/{name}": tensor for name, tensor in self.start.items()}
        # Tensors on a GPU are loaded to the device of the stack again, where the method made them.
        places = {n: _ON_CPU if t.device.type == "cpu" else _WITH_STACK for n, t in self.state.items()}
        return own | {places[name] + name: tensor for name, tensor in self.state.items()}

    def load(self, tensors: Tensors) -> None:
        """Restores the state that `tensors` was taken from."""
        self.state, self._prepared = {}, 0
        if self.classes is not None:
            self.classes.load(tensors)
        tensors = {"updated": tensors["received"]} | tensors  # checkpoints of earlier versions do not hold it
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])
        self._read_shared_vectors(range(len(self.sizes)))
        for name, tensor in tensors.items():
            if name.startswith(_ON_CPU):
                self.state[name.removeprefix(_ON_CPU)] = tensor
            elif name.startswith(_WITH_STACK):
                device = next(iter(self.stack.values())).device
                self.state[name.removeprefix(_WITH_STACK)] = tensor.to(device)
