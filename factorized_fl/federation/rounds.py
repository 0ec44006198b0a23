"""One round: choose clients, mix from a snapshot, train, evaluate, account."""

from collections.abc import Callable, Sequence

import torch

from factorized_fl.config import Config
from factorized_fl.engine import Evaluated, Trained
from factorized_fl.federation.build import Federation
from factorized_fl.federation.ledger import Traffic, parameters, payload_bytes
from factorized_fl.federation.mixing import mix
from factorized_fl.federation.rundir import Record
from factorized_fl.methods import Mixing, Server
from factorized_fl.seeds import numpy_rng


def choose(config: Config, round: int) -> list[int]:
    """The clients of a round: a seeded draw, at least one."""
    count = max(1, round_half_up(config.fraction * config.clients))
    if count == config.clients:
        return list(range(config.clients))
    return sorted(numpy_rng(config.seed, "choose", round).permutation(config.clients)[:count].tolist())


def round_half_up(value: float) -> int:
    """Ordinary rounding; Python's own goes to the even neighbour."""
    return int(value + 0.5)


def download(federation: Federation, round: int, clients: Sequence[int]) -> Mixing | None:
    """Mix from what the server last received and give each chosen client its row; round 1 has nothing to mix."""
    if not federation.shared or not federation.received.any():
        return None
    stack = {name: tensor for name, tensor in federation.state.common.items() if name in federation.shared}
    prints = [_fingerprint(federation, k) for k in range(len(federation.state))]
    known = [vector for vector in prints if vector is not None]
    server = Server(
        round=round,
        stack=stack,
        fingerprints=torch.stack(known) if known else None,
        sizes=federation.scenario.sizes,
        received=federation.received,
        state=federation.method_state,
        rng=numpy_rng(federation.config.seed, "mix", round),
    )
    mixing = federation.method.mix(server)
    rows = mixing.matrix[list(clients)]
    for stacked in stack.values():
        # The right-hand side is complete before anything is overwritten: a snapshot, one tensor at a time.
        stacked[list(clients)] = mix(rows, stacked)
    federation.method_state = mixing.state
    return mixing


def _fingerprint(federation: Federation, k: int) -> torch.Tensor | None:
    return federation.method.fingerprint(federation.state.client(k), federation.roles)


def account(federation: Federation, client: int, downloaded: bool) -> Traffic:
    """What the client sent and received in this round."""
    tensors = federation.state.client(client)
    shared = {name: tensors[name] for name in tensors if name in federation.shared}
    up = dict(shared)
    vector = _fingerprint(federation, client)
    if vector is not None and not federation.method.fingerprint_is_shared:
        up["fingerprint"] = vector
    down = shared if downloaded else {}
    return Traffic(parameters(up), parameters(down), payload_bytes(up), payload_bytes(down))


def run_round(
    federation: Federation, round: int, done: Callable[[int], None] = lambda client: None
) -> tuple[list[Record], Mixing | None]:
    """One round for the chosen clients; returns their metrics and the mixing that began it."""
    clients = choose(federation.config, round)
    mixing = download(federation, round, clients)
    trained = federation.engine.train(round, clients, federation.state, federation.momentum, done)
    federation.received[clients] = True
    tested = list(clients)
    if round == federation.config.rounds:
        tested = federation.received.nonzero().flatten().tolist()
    evaluated = federation.engine.evaluate(tested, federation.state)
    records = [
        _record(
            federation,
            round,
            k,
            evaluated[k],
            trained.get(k),
            account(federation, k, mixing is not None) if k in trained else Traffic(),
        )
        for k in tested
    ]
    return records, mixing


def _record(
    federation: Federation, round: int, k: int, result: Evaluated, trained: Trained | None, traffic: Traffic
) -> Record:
    return {
        "round": round,
        "client": k,
        "domain": federation.scenario.clients[k].domain,
        "accuracy": result.accuracy,
        "correct": result.correct,
        "total": result.total,
        "loss": result.loss,
        "train_loss": trained.loss if trained else None,
        "steps": trained.steps if trained else 0,
        "up_parameters": traffic.up_parameters,
        "down_parameters": traffic.down_parameters,
        "up_bytes": traffic.up_bytes,
        "down_bytes": traffic.down_bytes,
    }
