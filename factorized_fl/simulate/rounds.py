"""One round of a simulation: it drives the server's half and the clients' half over the same tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from factorized_fl.core.ledger import Traffic, count_traffic
from factorized_fl.core.server import Downloads, Sampling
from factorized_fl.core.views import Evaluated, Mixing, Tensors, Trained
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.population import Population, tested_at_end
from factorized_fl.simulate.private import reserve
from factorized_fl.simulate.separate import SeparateDownloads

Record = dict[str, Any]
SCORES = "scores"  # in the last line of each client: its accuracy with both kinds of BatchNorm statistics


def sampling_of(federation: Federation) -> Sampling:
    """How the participants of each round are drawn."""
    config = federation.config
    return Sampling(config.seed, len(federation.scenario.clients), config.fraction, config.dropout)


def download(
    federation: Federation, round_number: int, sampled: Sequence[int], answering: Sequence[int]
) -> Downloads | SeparateDownloads:
    """Mixes for the sampled clients and gives those that answer what they receive; returns all downloads."""
    clients, engine = federation.clients, federation.engine

    def validation_losses(k: int, tensors: Tensors) -> Sequence[float]:
        return engine.validation_losses(k, clients.state.client(k), tensors)

    clients.reset(answering)
    downloads = federation.server.prepare(round_number, sampled, validation_losses)
    rows = {k: row for row, k in enumerate(sampled) if k in answering}
    items = downloads.items()
    if federation.sealer is not None:
        items = federation.sealer.opened(round_number, items, rows, lambda k: f"client {k + 1}")
    clients.receive(round_number, items, rows, engine)
    return downloads


def run_round(
    federation: Federation,
    round_number: int,
    done: Callable[[int], None] = lambda client: None,
    keep: Callable[[Mapping[int, Evaluated]], None] = lambda results: None,
) -> tuple[list[Record], Mixing | None]:
    """Runs one round; returns the metrics of its clients and the mixing that it began with.

    Calls `done` after each client's training, and `keep` with the test results of all tested clients.
    """
    clients, server, engine = federation.clients, federation.server, federation.engine
    sampled, answering = sampling_of(federation).draw(round_number)
    downloads = download(federation, round_number, sampled, answering)
    server.begin_updates()
    reserve(federation.work, answering)
    trained = clients.train(round_number, answering, engine, done)
    updates = clients.send(answering)
    if federation.sealer is not None:
        updates = federation.sealer.sealed(round_number, answering, updates)
    up = server.keep(answering, updates) if answering else {}
    down, peers = downloads.loads(), downloads.peers()

    tested = [] if round_number % federation.config.test_every else list(answering)
    if round_number == federation.last_round:
        tested = server.received.nonzero().flatten().tolist()
        if isinstance(clients, Population):
            tested = tested_at_end(server.received, answering, federation.config.seed)
    evaluated = engine.evaluate(round_number, tested, clients) if tested else {}
    scored = all_scores(federation, round_number, evaluated) if round_number == federation.last_round else {}
    keep(evaluated)
    if isinstance(clients, Population):
        clients.release()
    records = []
    for k in sorted({*sampled, *tested}):
        traffic = Traffic()
        if k in sampled and federation.config.exchanges:
            traffic = count_traffic(down[k], up.get(k), clients.cost(k))
        domain = federation.scenario.clients[k].domain
        record = make_record(round_number, k, domain, evaluated.get(k), trained.get(k), traffic, peers.get(k))
        records.append(record | federation.spent(k) | ({SCORES: scored[k]} if k in scored else {}))
    return records, downloads.mixing


def all_scores(federation: Federation, round_number: int, tested: Mapping[int, Evaluated]) -> dict[int, Record]:
    """The scores of each client's model with both kinds of BatchNorm statistics, on test and validation images.

    `tested` are the results of the kind that the run is configured to test. With score = "validation" there are only
    validation scores. A client without validation images has no validation score.
    """
    config, clients = federation.config, federation.scenario.clients
    found: dict[int, Record] = {k: {} for k in tested}
    for recalibrate in (False, True):
        for part in ("test",) if config.score == "validation" else ("test", "validation"):
            ks = [k for k in tested if len(getattr(clients[k], part))]
            results: Mapping[int, Evaluated] = tested
            if recalibrate != config.recalibrate or part != "test":
                results = federation.engine.evaluate(
                    round_number, ks, federation.clients, recalibrate=recalibrate, part=part
                )
            for k in ks:
                kind = found[k].setdefault("recalibrated" if recalibrate else "plain", {})
                kind[part] = _tested(results[k])
    return found


def make_record(
    round_number: int,
    k: int,
    domain: str,
    result: Evaluated | None,
    trained: Trained | None,
    cost: Traffic,
    peers: float | None = None,
    spent: Mapping[str, float] | None = None,
) -> Record:
    """One line of the metrics; a client that dropped out has traffic but no result.

    `peers` is the number of effective peers in the client's download, None without a download; `spent` is the result of
    `Federation.spent`.
    """
    return {
        "round": round_number,
        "client": k,
        "domain": domain,
        **_tested(result),
        "train_loss": _finite(trained.loss) if trained else None,
        "steps": trained.steps if trained else 0,
        "effective_peers": peers,
        **(spent or {}),
        **vars(cost),
    }


def _tested(result: Evaluated | None) -> Record:
    if result is None:
        return dict.fromkeys(("accuracy", "correct", "total", "loss"))
    counts = {"accuracy": result.accuracy, "correct": result.correct, "total": result.total}
    return {**counts, "loss": _finite(result.loss), **scores(result)}


def scores(result: Evaluated) -> Record:
    """The entries of a test by other metrics than accuracy alone; empty where that is the only one."""
    found: Record = {}
    if result.primary is not None:
        found = {"score": _finite(result.primary), "score_error": _finite(result.error or math.nan)}
    if result.metrics:
        found["metrics"] = {name: _finite(value) for name, value in result.metrics.items()}
    return found


def _finite(value: float) -> float | None:
    """The value, or None for what JSON cannot hold: the loss of a client whose training diverged."""
    return value if math.isfinite(value) else None
