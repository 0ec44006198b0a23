"""A whole run: rounds until the end, written to a run directory round by round and resumable at any moment."""

import hashlib
import json
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import total_traffic
from factorized_fl.core.method import Method
from factorized_fl.core.named import NOTHING, Brought
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Evaluated, Tensors
from factorized_fl.data.scenarios import Scenario
from factorized_fl.nn.own import Factory
from factorized_fl.results.classes import save_classes
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory, describe_clients
from factorized_fl.results.schema import score_of
from factorized_fl.simulate.alignment import match_summary
from factorized_fl.simulate.analysis import analyse, trace
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.ranks import Follower, Ranks, find_ranks
from factorized_fl.simulate.rounds import SCORES, run_round
from factorized_fl.simulate.scenario import build_scenario_of, scenario_for

_METRICS_SIZE = "metrics_size"  # in a checkpoint: the size of metrics.jsonl in bytes when it was written
_DROPPED_SHARE = 0.25  # share of an epoch that may be dropped without a warning
_CHECKPOINT_SHARE = 0.01  # largest share of a run's time for checkpoints; small ones are written every round


_FINAL = (  # of a line of metrics
    *("client", "domain", "accuracy", "correct", "total", "loss", "round", "score", "score_error", "metrics", SCORES),
)


class Stopped(Exception):
    """Raised by an observer at a round's end to interrupt a run; a checkpoint is written first."""


class Observer(Protocol):
    """A progress bar or a log: its methods are called during a run."""

    def started(self, federation: "Federation", done: int) -> None:
        """Called when the run begins, or continues after `done` rounds."""

    def client_done(self, round_number: int, client: int) -> None:
        """Called when a client has finished its local training."""

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Called when a round is complete and its metrics are on disk."""


def run_federation(
    config: Config,
    out: Path | str,
    *,
    data: Path | None = None,
    scenario: Scenario | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    device: str = "auto",
    factory: Factory | None = None,
    brought: Brought = NOTHING,
    noise_seed: int | None = None,
) -> RunDirectory:
    """Runs a federation in the directory `out`, from the beginning or from its checkpoint, and returns the directory.

    A complete run is returned as it is, even if its checkpoint was removed. Without `scenario` the configured one is
    made from `data`; without `factory` the configured network is made. `brought` holds other functions of the caller by
    option; `noise_seed` is a private seed of noise in place of the run's. Raises UserError if the directory, the data
    or the configuration do not fit.

    Processes that torchrun or `ffl run --processes` started simulate the federation together; the first of them writes.
    """
    config.refuse_unkept()
    ranks = find_ranks()
    directory = RunDirectory(out) if ranks.leads else Follower(out)
    device = find_device(device)
    place = torch.device(device)
    with directory.lock():
        done, complete = ranks.same((directory.rounds_done(config, resume), bool(directory.summary())))
        if complete:
            if data is not None:
                warnings.warn(f"'{directory.path}' was already complete; '{data}' was ignored.", stacklevel=2)
            if scenario is not None:
                own = scenario_for(config.build_method(), config, scenario)
                directory.refuse_other_data(describe_clients(own))
            return directory
        if place.type == "cuda":
            torch.cuda.reset_peak_memory_stats(place)
        scenario = scenario or build_scenario_of(config, data)
        federation = build_federation(
            config, scenario, place, noise_seed=noise_seed, factory=factory, brought=brought, ranks=ranks
        )
        described = describe_run(federation)
        directory.refuse_other_data(described)
        size = _restore(federation, directory, ranks) if done else None
        environment = describe_environment(config.seed, device) | federation.engine.describe()
        directory.begin(config, environment, described, done, size)
        if ranks.leads:
            _warn_of_dropped(federation)
        observers = observers if ranks.leads else ()
        for observer in observers:
            observer.started(federation, done)
        _go_on(federation, directory, done, observers, place, ranks)
    return directory


def _warn_of_dropped(federation: Federation) -> None:
    """Warn if some client's last, incomplete batch, which is dropped, is a large share of its epoch."""
    size, lost = federation.config.batch_size, {}
    for client in federation.scenario.clients:
        if (count := len(client.train)) > size and (left := count % size) > _DROPPED_SHARE * count:
            lost[client.name] = f"{left} of its {count} training examples"
    if lost:
        name, share = next(iter(lost.items()))
        others = f", as {len(lost) - 1} other clients do" if len(lost) > 1 else ""
        warnings.warn(
            f"{name} leaves out {share} in each epoch{others}, because the last incomplete batch is dropped: "
            f"batch_size = {size} does not suit this number.",
            stacklevel=3,
        )


def describe_run(federation: Federation) -> list[Record]:
    """The entries of clients.json; with an own network each has a mark of its tensors' names and shapes."""
    described = describe_clients(federation.scenario)
    if federation.config.has_own_model:
        frozen = [federation.frozen] if federation.frozen else []
        for k, entry in enumerate(described):
            shapes = [[name, *tensor.shape] for name, tensor in federation.clients.state.client(k).items()]
            entry["model"] = hashlib.blake2b(json.dumps([*shapes, *frozen]).encode(), digest_size=8).hexdigest()
    return described


def find_device(name: str) -> str:
    """The device to train on; "auto" is a GPU if there is one. Raises UserError if there is no such device."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (gpus and name == "cuda") or name in (f"cuda:{index}" for index in range(gpus)):
        return name
    raise UserError(f"There is no device '{name}' here: use cpu or auto.")


def peak_memory(device: torch.device) -> Record:
    """The peak memory of this process's tensors on a GPU since the run began; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {"peak_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 3)}


def _go_on(
    federation: Federation,
    directory: RunDirectory,
    done: int,
    observers: Sequence[Observer],
    device: torch.device,
    ranks: Ranks,
) -> None:
    writing, written = 0.0, time.monotonic()

    def client_done(client: int) -> None:
        for observer in observers:
            observer.client_done(round_number, client)

    def keep(results: Mapping[int, Evaluated]) -> None:
        if round_number == federation.last_round:
            directory.save_graded(federation.scenario, results)

    round_number, federation.last_round = done, ranks.same(federation.last_round)
    while round_number < federation.last_round:
        round_number += 1
        began = time.monotonic()
        records, mixing = run_round(federation, round_number, client_done, keep)
        if mixing is not None:
            directory.save_mixing(round_number, mixing)
        directory.save_trace(round_number, trace(federation))
        if federation.server.classes is not None and ranks.leads:
            save_classes(directory.path, round_number, federation.server.classes.reports)
        directory.append("metrics.jsonl", records)
        now = time.monotonic()
        more = peak_memory(device) | federation.encryption_seconds()
        directory.append("timing.jsonl", [{"round": round_number, "seconds": now - began, **more}])
        due = ranks.same(round_number == federation.last_round or writing <= _CHECKPOINT_SHARE * (now - written))
        if due:
            _save(federation, directory, round_number)
            written = time.monotonic()
            writing = written - now
        stopped: Stopped | None = None
        try:
            for observer in observers:
                observer.round_done(round_number, records)
        except Stopped as stop:
            stopped = stop
        stopped, federation.last_round = ranks.same((stopped, federation.last_round))
        if stopped:
            if not due:
                _save(federation, directory, round_number)
            raise stopped
    directory.save_analysis(analyse(federation))
    if ranks.leads:
        summary = summarise(directory)
        if isinstance(federation.server, ServerState):
            summary |= activation(federation.method, federation.server.state)
        if federation.server.classes is not None:
            summary |= match_summary(federation.scenario, federation.server.classes)
        directory.save_summary(summary)


def _restore(federation: Federation, directory: RunDirectory, ranks: Ranks) -> int | None:
    """Restores the checkpoint; returns the size that metrics.jsonl had then, if it is recorded."""
    with directory.reading_checkpoint():
        tensors = ranks.same(directory.load_checkpoint() if ranks.leads else {})
        federation.load(tensors)
        return int(tensors[_METRICS_SIZE]) if _METRICS_SIZE in tensors else None


def _save(federation: Federation, directory: RunDirectory, round_number: int) -> None:
    federation.clients.complete_all()
    size = torch.tensor(directory.metrics_size())
    directory.save_checkpoint(round_number, {**federation.tensors, _METRICS_SIZE: size})


def activation(method: Method, state: Tensors) -> Record:
    """Return the summary's entry on whether the method had its effect; empty without such a condition."""
    found = method.activated(state) if state else None
    return {} if found is None else {"activated": found}


def summarise(directory: RunDirectory) -> Record:
    """The final accuracies and the total traffic, from the run's metrics; and the scores by another primary metric."""
    records = directory.metrics()
    last = {record["client"]: record for record in records if score_of(record) is not None}
    clients = [last[k] for k in sorted(last)]
    accuracies = [record["accuracy"] for record in clients if record["accuracy"] is not None]
    scored = {"metric": next(iter(clients[0]["metrics"]))} if clients and "metrics" in clients[0] else {}
    if scored:
        scored |= {"score_mean": statistics.fmean(score_of(record) or 0.0 for record in clients)}
    return {
        "method": directory.config().method,
        **scored,
        "clients": [{name: record[name] for name in _FINAL if name in record} for record in clients],
        "accuracy_mean": statistics.fmean(accuracies) if accuracies else None,
        "accuracy_spread": statistics.pstdev(accuracies) if accuracies else None,
        "score_means": _score_means([record[SCORES] for record in clients if SCORES in record]),
        **total_traffic(records),
    }


def _score_means(scored: Sequence[Record]) -> Record:
    """The mean score over clients by kind of BatchNorm statistics and by part of the images."""
    found: dict[str, dict[str, list[float]]] = {}
    for of_client in scored:
        for kind, parts in of_client.items():
            for part, record in parts.items():
                if (score := score_of(record)) is not None:
                    found.setdefault(kind, {}).setdefault(part, []).append(score)
    return {kind: {part: statistics.fmean(all_of) for part, all_of in parts.items()} for kind, parts in found.items()}
