"""A resumable runner: each job is an ordinary run in a directory of its own, then kept as one file.

What is finished is never run again. A run that was interrupted, or had no time left, is continued from its checkpoint.
"""

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import FrameType

import torch
from safetensors import SafetensorError

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.run import Observer, Stopped, run_federation
from studies.records import came_from, read_record, write_record

_ROUND_MARGIN = 1.5  # a round may take that much longer than the one before it, checkpoint included
Watch = Callable[[Config], AbstractContextManager[Observer]]


@dataclass
class Clock:
    """The time that is left; an interrupt ends it, too."""

    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)
    interrupted: bool = False

    @property
    def left(self) -> float:
        """Seconds left."""
        if self.interrupted:
            return 0.0
        return float("inf") if self.seconds is None else self.seconds - (time.monotonic() - self.began)

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


class Stopper:
    """An observer that stops a run, with a checkpoint, when another round would not fit into the time left."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ready = 0.0  # when the rounds began

    def started(self, federation: Federation, done: int) -> None:
        """Note when the rounds begin."""
        self.rounds = federation.config.rounds
        self.ready = self.since = time.monotonic()

    def client_done(self, number: int, client: int) -> None:
        """Do nothing inside a round."""

    def round_done(self, number: int, records: Sequence[Record]) -> None:
        """Raise Stopped if the next round would take longer than the time left."""
        now = time.monotonic()
        took, self.since = now - self.since, now
        if number < self.rounds and self.clock.left < _ROUND_MARGIN * took:
            raise Stopped


@dataclass(frozen=True)
class Job:
    """One run: its configuration, the file of its result, and how that is made.

    `measure` returns what is kept of a finished run, given the seconds that its start took; `expected` returns the
    seconds that the whole run is expected to take, 0 if that is unknown.
    """

    name: str
    path: Path
    config: Config
    measure: Callable[[RunDirectory, float], Record]
    expected: Callable[[], float] = lambda: 0.0


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
            directory = RunDirectory(work / f"{job.name}-{_digest(job.config)}")
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
            _free_memory()
            yield Progress(job.name, "done", record)


def _run_job(
    job: Job, directory: RunDirectory, data: Path | None, clock: Clock, device: str, watch: Watch | None
) -> Record:
    """Run one job to its end and return what is kept of it.

    A complete run without a result file is only measured again; the duration of its start is unknown then.
    """
    began = time.monotonic()
    stopper = Stopper(clock)
    with watch(job.config) if watch else nullcontext() as watching:
        observers = [*([watching] if watching else []), stopper]
        run_federation(job.config, directory.path, data=data, resume=True, observers=observers, device=device)
    start = stopper.ready - began if stopper.ready else 0.0
    try:
        return job.measure(directory, start)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"The run in '{directory.path}' is complete but cannot be read ({error!r}): remove it to run it again."
        ) from None


def _free_memory() -> None:
    """Collect reference cycles: captured graphs hold gigabytes of a GPU's memory until that is done."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _digest(config: Config) -> str:
    """Return a short name of a configuration, so that an interrupted run is never resumed with another one."""
    return blake2b(config.to_toml().encode(), digest_size=4).hexdigest()
