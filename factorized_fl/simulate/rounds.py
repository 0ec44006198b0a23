"""One round: choose clients, mix from a snapshot, train, evaluate, account."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from factorized_fl.config import Config
from factorized_fl.core.answers import mixing_of
from factorized_fl.core.ledger import Load, Payloads, Traffic, traffic, upload_loads
from factorized_fl.core.mixing import mix
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.engine import Evaluated, Trained
from factorized_fl.methods import Mixing, Server, Tensors
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.build import Federation


def choose(config: Config, round: int) -> tuple[list[int], list[int]]:
    """The clients of a round by a seeded draw, at least one, and those of them that will answer.

    A client that drops out received its download and then failed: it keeps the state it had before the round.
    """
    rng = numpy_rng(config.seed, "choose", round)
    chosen = sorted(rng.permutation(config.clients)[: clients_per_round(config)].tolist())
    return chosen, [client for client in chosen if rng.random() >= config.dropout]


def clients_per_round(config: Config) -> int:
    """How many are chosen: the fraction, rounded half up, at least one."""
    return max(1, int(config.fraction * config.clients + 0.5))


def download(
    federation: Federation, round: int, chosen: Sequence[int], clients: Sequence[int]
) -> tuple[Mixing | None, dict[int, Load]]:
    """Mix for the chosen from what the server last received, and give each client its row; returns what was sent.

    The first round has nothing to mix; `clients` are those of the chosen that will answer.
    """
    state = federation.state.common
    for name, initial in federation.initial.items():
        state[name][list(clients)] = initial[list(clients)]
    if not federation.shared or not federation.received.any():
        return None, {}
    stack = {name: tensor for name, tensor in state.items() if name in federation.shared}
    server = _server(federation, round, chosen, stack)
    mixing = mixing_of(federation.method, server)
    there = partial(torch.tensor, dtype=torch.int64, device=next(iter(stack.values())).device)
    places, answering = there(list(clients)), there([row for row, client in enumerate(chosen) if client in clients])
    sent = Payloads(chosen, federation.roles)
    for name, mixed in mixed_rows(mixing, server):
        stacked = stack[name]
        sent.add(name, mixed)
        stacked[places] = mixed[answering]
        if mixing.revert is not None:
            back = [client for client in clients if mixing.revert[client]]
            stacked[back] = federation.start.common[name][back]
    federation.method_state = {n: t.clone(memory_format=torch.contiguous_format) for n, t in mixing.state.items()}
    return mixing, sent.loads(copies=mixing.downloads)


def mixed_rows(mixing: Mixing, server: Server) -> Iterator[tuple[str, torch.Tensor]]:
    """What each of the round's clients is sent: one tensor at a time, all its rows made before any is used."""
    for name, stacked in server.stack.items():
        yield name, mix(mixing.others.get(name, mixing.matrix)[list(server.clients)], stacked)


def mixing_rng(config: Config, round: int) -> np.random.Generator:
    """The draws of a round's mixing."""
    return numpy_rng(config.seed, "mix", round)


def _server(federation: Federation, round: int, clients: Sequence[int], stack: Tensors) -> Server:
    prints = [
        federation.method.fingerprint(federation.state.client(k), federation.roles)
        for k in range(len(federation.state))
    ]
    known = [vector for vector in prints if vector is not None]

    def validation_losses(client: int, tensors: Tensors) -> Sequence[float]:
        return federation.engine.validation_losses(client, federation.state.client(client), tensors)

    return Server(
        round=round,
        clients=clients,
        stack=stack,
        start=federation.start.common,
        fingerprints=torch.stack(known) if known else None,
        sizes=federation.scenario.sizes,
        received=federation.received,
        state=federation.method_state,
        rng=mixing_rng(federation.config, round),
        validation_losses=validation_losses,
    )


def run_round(
    federation: Federation, round: int, done: Callable[[int], None] = lambda client: None
) -> tuple[list[Record], Mixing | None]:
    """One round for the chosen clients; returns their metrics and the mixing that began it."""
    chosen, clients = choose(federation.config, round)
    mixing, down = download(federation, round, chosen, clients)
    trained = train_from_here(federation, round, clients, done)
    up = upload_loads(federation, clients)
    tested = list(clients)
    if round == federation.config.rounds:
        tested = federation.received.nonzero().flatten().tolist()
    evaluated = federation.engine.evaluate(round, tested, federation.state, federation.start)
    records = []
    for k in sorted({*chosen, *tested}):
        cost = traffic(federation, k, down.get(k, Load()), up.get(k)) if k in chosen else Traffic()
        domain = federation.scenario.clients[k].domain
        records.append(make_record(round, k, domain, evaluated.get(k), trained.get(k), cost))
    return records, mixing


def train_from_here(
    federation: Federation, round: int, clients: Sequence[int], done: Callable[[int], None] = lambda client: None
) -> dict[int, Trained]:
    """The clients' own part of a round: remember where it begins, if the method wants to know, and train."""
    federation.start.take(federation.state, clients)
    trained = federation.engine.train(round, clients, federation.state, federation.momentum, done)
    federation.received[list(clients)] = True
    return trained


def make_record(
    round: int, k: int, domain: str, result: Evaluated | None, trained: Trained | None, cost: Traffic
) -> Record:
    """One line of the metrics; a client that dropped out has traffic but no result."""
    return {
        "round": round,
        "client": k,
        "domain": domain,
        "accuracy": result.accuracy if result else None,
        "correct": result.correct if result else None,
        "total": result.total if result else None,
        "loss": _finite(result.loss) if result else None,
        "train_loss": _finite(trained.loss) if trained else None,
        "steps": trained.steps if trained else 0,
        **cost.record(),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: a client whose training diverged has no loss."""
    return value if math.isfinite(value) else None
