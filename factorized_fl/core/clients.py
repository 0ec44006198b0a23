"""The clients' half of a round: receive, train, send, evaluate.

One `ClientState` holds the tensors of K clients as stacks: all clients of a simulation, or the one client of a site. It
knows no device and no mathematics: an engine trains on the stacks in place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from factorized_fl.core.answers import checked_payload
from factorized_fl.core.classes import CLASS, DRIFT, REPORTS, ROW, ClassRows
from factorized_fl.core.ledger import EXTRA, FINGERPRINT
from factorized_fl.core.method import Method
from factorized_fl.core.stack import ClientStack
from factorized_fl.core.views import Cost, Evaluated, Roles, Tensors, Trained


class Engine(Protocol):
    """Local training and evaluation of some clients, in place on the stacks of a `ClientState`."""

    def describe(self) -> dict[str, str | int]:
        """Returns the engine's name and how it computes convolutions, whatever the options request."""

    def train(
        self, round_number: int, ks: Sequence[int], clients: "ClientState", done: Callable[[int], None]
    ) -> dict[int, Trained]:
        """Trains each client for its local epochs and calls `done` after each."""

    def evaluate(
        self,
        round_number: int,
        ks: Sequence[int],
        clients: "ClientState",
        *,
        recalibrate: bool | None = None,
        part: str = "test",
    ) -> dict[int, Evaluated]:
        """Tests each client's own model under its own labels, on its test images or on another part of its images.

        `recalibrate` replaces the option of the run with this name.
        """

    def tested(self, round_number: int, k: int, clients: "ClientState", recalibrate: bool | None = None) -> Tensors:
        """Returns the tensors of the model of client k that `evaluate` tests; the client's own are not changed."""

    def confusion(self, round_number: int, ks: Sequence[int], clients: "ClientState") -> list[torch.Tensor]:
        """Returns for each client the counts by true class (rows) and predicted class: int64 [C, C] on the CPU."""

    def validation_losses(self, k: int, own: Tensors, candidates: Tensors) -> Sequence[float]:
        """Returns the mean losses on client k's held-out images of its model with each of M candidates, [M, ...]."""

    def receive(self, round_number: int, k: int, clients: "ClientState", given: Tensors) -> Tensors:
        """Returns the tensors that client k begins a round with: calls the method's hook with a download."""


class ClientState:
    """The state of K clients: tensors, optimiser state, averages, kept tensors, further models."""

    def __init__(
        self,
        method: Method,
        roles: Roles,
        shared: frozenset[str],
        *,
        state: ClientStack,
        trained: Iterable[str],
        started: Iterable[str],
        reset: Iterable[str] = (),
        kept: Sequence[Tensors] | ClientStack = (),
        models: Sequence[str] = (),
        memory: Sequence[Tensors] | ClientStack = (),
        averages: Iterable[str] = (),
        extra_up: Tensors | None = None,
        extra_down: Tensors | None = None,
        classes: ClassRows | None = None,
        class_down: Tensors | None = None,
        described: Tensors | None = None,
        dense_rows: Callable[[Tensors], torch.Tensor] | None = None,
    ) -> None:
        self.method, self.roles, self.shared = method, roles, shared
        self.state, self.momentum = state, state.made(torch.zeros_like, trained)
        self.start = state.made(torch.clone, started)  # each client's tensors before its last local training
        self.initial = {name: state.begun(name) for name in sorted(reset)}
        self.kept = _stacked(kept) if len(kept) else ClientStack({}, [{} for _ in range(len(state))])
        self.models = {name: state.made(torch.clone, state.client(0)) for name in models}
        self.momenta = {name: self.momentum.made(torch.zeros_like, self.momentum.client(0)) for name in models}
        # The state of another optimiser than SGD, for the clients' own models ("") and for the further ones.
        self.memories = {name: _stacked(memory) for name in ("", *models)} if len(memory) else {}
        self.average = state.made(torch.clone, averages)  # averaged weights, which are tested in place of the last
        self.expected_up, self.expected_down = extra_up or {}, extra_down or {}
        self.classes, self.class_down = classes, class_down or {}
        self.described = described or {}  # the payloads by which classes are matched, [K, ...]
        drift = {n: t for n, t in self.described.items() if n == DRIFT}
        self.drift = ClientStack(drift, [{} for _ in range(len(state))]) if drift else None  # DRIFT of each client
        self.dense_rows = dense_rows  # a client's classifier as dense rows [C, D], where classes are matched by them
        self.reports: dict[int, Tensors] = {}  # the last report to each client about its classes
        self.trained = torch.zeros(len(state), dtype=torch.bool)  # has this client ever trained?
        self.inbox: Tensors = {}  # extra payloads of this round, [K, ...]
        self.outbox: dict[int, Tensors] = {}  # extra payloads of this round's training, by client

    def __len__(self) -> int:
        return len(self.state)

    # -- a round, in order

    def reset(self, ks: Sequence[int]) -> None:
        """Sets the tensors that the method resets back to their initial values."""
        for name, initial in self.initial.items():
            self.state.common[name][list(ks)] = initial[list(ks)]

    def receive(
        self,
        round_number: int,
        items: Iterable[tuple[str, torch.Tensor]],
        rows: Mapping[int, int],
        engine: Engine,
    ) -> None:
        """Takes a download; `rows` says which row of its tensors belongs to which client.

        Rows of other clients are ignored, but every item is consumed. Tensors are replaced one at a time unless the
        method has a hook of its own, which sees all of them.
        """
        device = next(iter(self.state.client(0).values())).device
        ks, places = (torch.tensor(list(side), dtype=torch.int64, device=device) for side in (rows, rows.values()))
        self.inbox = {name: torch.zeros(len(self), *like.shape).to(like) for name, like in self.expected_down.items()}
        together: dict[str, torch.Tensor] = {}
        about: dict[str, torch.Tensor] = {}
        for name, mixed in items:
            if name.startswith(EXTRA + CLASS):
                about[name.removeprefix(EXTRA)] = mixed[places.to(mixed.device)]  # class payloads lie on the CPU
            elif name.startswith(EXTRA):
                self.inbox[name.removeprefix(EXTRA)][ks] = mixed[places]
            elif self.method.receives:
                together[name] = mixed[places]
            else:
                self.state.common[name][ks] = mixed[places]
        for row, k in enumerate(rows):
            if self.classes is not None and about:
                given = {name: tensor[row] for name, tensor in about.items()}
                self.classes.replace(self.state.client(k), given)
                self.reports[k] = {name: given[name] for name in REPORTS}
        if not together:
            return
        for row, k in enumerate(rows):
            # In the order of the model, whatever the order in which the tensors arrived.
            given = {name: together[name][row] for name in self.state.common if name in together}
            begun = engine.receive(round_number, k, self, dict(given))
            for name, tensor in checked_payload(self.method.name, "receive", begun, given).items():
                self.state.client(k)[name].copy_(tensor)

    def train(
        self, round_number: int, ks: Sequence[int], engine: Engine, done: Callable[[int], None] = lambda k: None
    ) -> dict[int, Trained]:
        """Stores the tensors that training begins with, where the method needs them, and trains."""
        self.start.take(self.state, ks)
        self.average.take(self.state, ks)
        self.outbox = {}
        self.trained[list(ks)] = True
        if self.dense_rows is None:
            return engine.train(round_number, ks, self, done)
        before = {k: self.dense_rows(self.state.client(k)) for k in ks}
        trained = engine.train(round_number, ks, self, done)
        for k in ks:
            drift = self.described[DRIFT][k, : len(before[k])]
            drift.add_((self.dense_rows(self.state.client(k)) - before[k]).to(drift))
        return trained

    def send(self, ks: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors that some clients send after training: names, each with its rows [n, ...]."""
        if not (self.shared or self.expected_up) or not ks:
            return
        places = list(ks)
        for name, stacked in self.state.common.items():
            if name in self.shared:
                yield name, stacked[places]
        vectors = [self.method.fingerprint(self.state.client(k), self.roles) for k in places]
        if not self.method.fingerprint_is_shared and all(vector is not None for vector in vectors):
            yield FINGERPRINT, torch.stack([vector for vector in vectors if vector is not None])
        for name, like in self.expected_up.items():
            yield EXTRA + name, torch.stack([self.outbox[k][name] for k in places]).to(like)
        if self.classes is not None:
            for name in self.classes.names:
                yield EXTRA + ROW + name, torch.stack([self.classes.pad(self.state.client(k)[name]) for k in places])
            yield from ((EXTRA + name, tensor[places]) for name, tensor in self.described.items())

    def cost(self, k: int) -> Cost:
        """The numbers that the paper's cost formula counts for client k in this round."""
        return self.method.card.cost(self.method, self.state.client(k), self.roles)

    def complete(self, stacked: Mapping[str, torch.Tensor]) -> None:
        """Fills in the rows, [K, ...], of clients that another process trains; in one process there are none."""

    # -- what a checkpoint holds

    def complete_all(self) -> None:
        """Fills in everything that changes from round to round of clients that another process trains."""

    @property
    def stacks(self) -> dict[str, ClientStack]:
        """Everything of the clients that changes from round to round, by the beginning of its names in a checkpoint."""
        stacks = {"state": self.state, "momentum": self.momentum, "start": self.start, "kept": self.kept}
        stacks |= {f"optimizer/{name}": stack for name, stack in self.memories.items()} | {"average": self.average}
        stacks |= {f"models/{name}": stack for name, stack in self.models.items()}
        stacks |= {f"momenta/{name}": stack for name, stack in self.momenta.items()}
        return stacks if self.drift is None else stacks | {"drift": self.drift}

    @property
    def tensors(self) -> Tensors:
        """All tensors that change from round to round, under distinct names."""
        flat = {name: tensor for prefix, stack in self.stacks.items() for name, tensor in stack.flat(prefix).items()}
        return {"trained": self.trained, **flat}

    def load(self, tensors: Tensors) -> None:
        """Restores the state that `tensors` was taken from."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def _stacked(given: Sequence[Tensors] | ClientStack) -> ClientStack:
    """A new stack: made of single clients' tensors, or with the tensors of a given stack."""
    return given.made(torch.clone, given.client(0)) if isinstance(given, ClientStack) else ClientStack.of(given)
