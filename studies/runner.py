"""A resumable runner: each job is an ordinary run in a directory of its own, then kept as one JSON file.

What is finished is never run again. A run that was interrupted, or had no time left, is continued from its checkpoint.
"""

import gc
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

from factorized_fl.config import Config, from_table, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.run import Observer, Stopped, run_federation

_ROUND_MARGIN = 1.5  # a round may take that much longer than the one before it, checkpoint included
Watch = Callable[[Config], AbstractContextManager[Observer]]


@dataclass
class Clock:
    """The time that is left; an interrupt ends it.

    As an observer of a run it stops that, with a checkpoint, when another round would not fit into the time left.
    """

    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    ready: float = 0.0  # when the rounds of the run began; 0 before

    @property
    def left(self) -> float:
        """Seconds left."""
        if self.interrupted:
            return 0.0
        return float("inf") if self.seconds is None else self.seconds - (time.monotonic() - self.began)

    def started(self, federation: Federation, done: int) -> None:
        """Note when the rounds begin."""
        self.rounds, self.ready, self.since = federation.config.rounds, time.monotonic(), time.monotonic()

    def client_done(self, number: int, client: int) -> None:
        """Do nothing inside a round."""

    def round_done(self, number: int, records: Sequence[Record]) -> None:
        """Raise Stopped if the next round would take longer than the time left."""
        took, self.since = time.monotonic() - self.since, time.monotonic()
        if number < self.rounds and self.left < _ROUND_MARGIN * took:
            raise Stopped

    @contextmanager
    def heeding_interrupts(self) -> Iterator[None]:
        """Let the first Ctrl-C end the time, so that the current round is finished and kept; the second one aborts."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Job:
    """One run: its configuration, the file of its result, and how that is made."""

    name: str
    path: Path
    config: Config
    measure: Callable[
        [RunDirectory, float], Record
    ]  # returns the record of a run, given the seconds that its start took
    expected: Callable[[], float] = lambda: 0.0  # the seconds that it is expected to take, 0 if that is unknown


@dataclass(frozen=True)
class Progress:
    """The state of a job: "done", "was done", "cut off" or "no time"."""

    name: str
    state: str
    record: Record | None = None
    other_configuration: bool = False  # the file is from another configuration than the one wanted now


def run_jobs(
    jobs: Iterable[Job],
    work: Path,
    *,
    data: Path | None = None,
    clock: Clock | None = None,
    device: str = "auto",
    watch: Watch | None = None,
    note: str = "",
) -> Iterator[Progress]:
    """Run the jobs without a file, in order, while there is time; yield the state of each.

    Every result written keeps the note, if there is one.
    """
    clock = clock or Clock()
    cut_off = False
    with clock.heeding_interrupts():
        for job in jobs:
            if job.path.exists():
                record = read_record(job.path, "clients", "correct")
                yield Progress(job.name, "was done", record, not came_from(record, job.config))
                continue
            # An interrupted run is never resumed with another configuration.
            digest = blake2b(job.config.to_toml().encode(), digest_size=4).hexdigest()
            directory = RunDirectory(work / f"{job.name}-{digest}")
            begun = directory.checkpoint_path.exists()
            no_time = cut_off or clock.left <= 0 or (not begun and clock.left < job.expected())
            if no_time and not directory.summary():
                yield Progress(job.name, "no time")
                continue
            try:
                record = _run_job(job, directory, data, clock, device, watch)
            except Stopped:
                cut_off = True
                yield Progress(job.name, "cut off")
                continue
            write_record(job.path, record | ({"note": note} if note else {}))
            directory.checkpoint_path.unlink(missing_ok=True)  # large, and no longer needed
            gc.collect()  # captured graphs hold gigabytes of a GPU's memory in reference cycles until that is done
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            yield Progress(job.name, "done", record)


def _run_job(
    job: Job, directory: RunDirectory, data: Path | None, clock: Clock, device: str, watch: Watch | None
) -> Record:
    """Run one job to its end and return what is kept of it.

    A complete run without a result file is only measured again; the duration of its start is unknown then.
    """
    began, clock.ready = time.monotonic(), 0.0
    with watch(job.config) if watch else nullcontext() as watching:
        observers = [*([watching] if watching else []), clock]
        run_federation(job.config, directory.path, data=data, resume=True, observers=observers, device=device)
    start = clock.ready - began if clock.ready else 0.0
    try:
        return job.measure(directory, start)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"The run in '{directory.path}' is complete but cannot be read ({error!r}): remove it to run it again."
        ) from None


def read_record(path: Path, *needed: str) -> Record:
    """Return what a result file holds; raise UserError if it cannot be read or lacks one of the needed entries."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if missing := sorted(set(needed) - set(record)):
            raise ValueError(f"it has no '{missing[0]}'")
        return record
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"The result '{path}' cannot be read ({error}): remove it to run this cell again.") from None


def write_record(path: Path, record: Record) -> None:
    """Write a result file, with its folder."""
    with plain_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (layout(record) + "\n").encode())


def write_measured(path: Path, config: Config, device: str, measure: Callable[[], Record]) -> None:
    """Write what a function measures, with the environment, the configuration and the time that it took."""
    began, environment = time.monotonic(), describe_environment(config.seed, device)
    origin = {"commit": environment.pop("commit"), "environment": environment, "configuration": as_record(config)}
    write_record(path, measure() | origin | {"seconds": round(time.monotonic() - began, 1)})


def as_record(config: Config) -> Record:
    """Return a configuration as JSON has it."""
    return json.loads(json.dumps(asdict(config)))


def came_from(record: Record, config: Config) -> bool:
    """Return whether a result was run with a configuration; an option newer than the result has its default."""
    try:
        return replace(from_table(upgrade(record["configuration"])), profile=config.profile) == config
    except UserError:  # an option that was removed
        return False


def layout(value: Any, indent: int = 0) -> str:
    """Return JSON in which a table of numbers has one line per row."""
    flat = json.dumps(value)
    rows = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    if not (isinstance(value, dict) or rows) or len(flat) + indent < 100:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {layout(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + inner[1:] + "}"
    return "[\n" + ",\n".join(inner + layout(item, indent + 1) for item in value) + "\n" + inner[1:] + "]"
