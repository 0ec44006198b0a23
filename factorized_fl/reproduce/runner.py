"""Runs cells: each an ordinary run in a directory of its own, resumed if it was cut off, then kept as one file."""

import gc
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.reproduce import draws, heterogeneity
from factorized_fl.reproduce.cells import Cell, Result, read_result, write_result
from factorized_fl.reproduce.choices import chosen_options, not_chosen, write_choices
from factorized_fl.reproduce.collection import collect
from factorized_fl.reproduce.differences import unexplained_first
from factorized_fl.reproduce.measures import measure
from factorized_fl.reproduce.studies import find_study, select
from factorized_fl.results.environment import device_name
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.run import Observer, Stopped, find_device, run

WORK = Path("runs/paper")
_ROUND_MARGIN = 1.5  # a round may take so much longer than the one before it, checkpoint included
Watch = Callable[[Config], AbstractContextManager[Observer]]


@dataclass
class Clock:
    """How much time there is; an interrupt ends it, too."""

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
        """The first Ctrl-C ends the time, so that the round under way is finished and kept; the second ends all."""

        if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
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
    """Leaves a run, checkpointed, when another round would not fit into the time left."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ready = 0.0

    def started(self, federation: Federation, done: int) -> None:
        """Note when the rounds begin."""
        self.rounds = federation.config.rounds
        self.ready = self.since = time.monotonic()

    def client_done(self, round: int, client: int) -> None:
        """Nothing to do inside a round."""

    def round_done(self, round: int, records: Sequence[Record]) -> None:
        """Stop in time; the last round is the end anyway."""
        now = time.monotonic()
        took, self.since = now - self.since, now
        if round < self.rounds and self.clock.left < _ROUND_MARGIN * took:
            raise Stopped


@dataclass(frozen=True)
class Progress:
    """What became of a cell: "done", "was done", "cut off" or "no time"."""

    name: str
    state: str
    result: Result | None = None
    another_configuration: bool = False  # a file from a configuration that is not the one wanted now


def files(
    what: Sequence[str],
    results: Path,
    seeds: Sequence[int] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[Path]:
    """Where the results of some studies go, in the order in which they are run."""
    cells = [cell.path(results) for cell in _in_order(select(what, seeds, methods, settings), results)]
    return [*cells, *_without_cells(what, results, seeds)]


def _in_order(cells: list[Cell], results: Path) -> list[Cell]:
    """As studies list them, but for departures: what is worth running depends on what was found so far."""
    return unexplained_first(cells, collect(results)) if any(cell.what == "departures" for cell in cells) else cells


def _without_cells(
    what: Sequence[str], results: Path, seeds: Sequence[int]
) -> dict[Path, Callable[[Path | None, str], None]]:
    """The files of studies without cells, if any is among them, and what writes each, given data and device."""
    writers: dict[Path, Callable[[Path | None, str], None]] = {}
    if "heterogeneity" in what:
        for seed in seeds or find_study("heterogeneity").seeds:
            writers[heterogeneity.path_of(results, seed)] = partial(heterogeneity.run_study, results, seed)
    if "draws" in what:
        for dataset in draws.SETS:
            writers[draws.path_of(results, dataset)] = partial(draws.run_study, results, dataset)
    return writers


def run_studies(
    what: Sequence[str],
    results: Path,
    *,
    seeds: Sequence[int] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
    data: Path | None = None,
    work: Path = WORK,
    clock: Clock | None = None,
    device: str = "auto",
    watch: Watch | None = None,
    note: str = "",
) -> Iterator[Progress]:
    """Run what is missing of some studies; tells of each cell.

    Every result keeps the note, if there is one.
    """
    clock = clock or Clock()
    everything = _in_order(select(what, seeds, methods, settings), results)
    run_some = partial(
        run_cells, results=results, data=data, work=work, clock=clock, device=device, watch=watch, note=note
    )
    if "choices" in what:
        yield from run_some([cell for cell in everything if cell.what == "choices"])
        write_choices(results)
    cells = [cell for cell in everything if cell.what != "choices"]
    if missing := not_chosen([cell for cell in cells if not cell.path(results).exists()], results):
        warnings.warn(
            f"What the paper leaves open was not chosen for {', '.join(missing)}: that has its preset's value. "
            "`ffl reproduce choices` chooses, and comes first.",
            stacklevel=2,
        )
    yield from run_some(cells, chosen=chosen_options(results))
    for path, write in _without_cells(what, results, seeds).items():
        name = f"{path.parent.name}/{path.stem}"
        if path.exists():
            yield Progress(name, "was done")
        elif clock.left <= 0:
            yield Progress(name, "no time")
        else:
            write(data, device)
            yield Progress(name, "done")


def run_cells(
    cells: Sequence[Cell],
    results: Path,
    *,
    data: Path | None = None,
    work: Path = WORK,
    clock: Clock | None = None,
    device: str = "auto",
    chosen: Callable[[Cell], Mapping[str, Any]] = lambda cell: {},
    watch: Watch | None = None,
    note: str = "",
) -> Iterator[Progress]:
    """Run what has no file yet, in order, while there is time; tells of each cell."""
    clock = clock or Clock()
    machine = device_name(find_device(device))
    cut_off = False
    with clock.heeding_interrupts():
        for cell in cells:
            config = cell.config(chosen(cell))
            if (result := read_result(cell.path(results))) is not None:
                yield Progress(cell.name, "was done", result, not result.came_from(config))
                continue
            directory = RunDirectory(work / f"{cell.name}-{_digest(config)}")
            begun = directory.checkpoint_path.exists()
            too_long = not begun and clock.left < expected_seconds(cell, results, machine)
            no_time = cut_off or clock.left <= 0 or too_long
            if no_time and not directory.summary():
                yield Progress(cell.name, "no time")
                continue
            try:
                record = run_cell(cell, config, directory, data=data, clock=clock, device=device, watch=watch)
            except Stopped:
                cut_off = True
                yield Progress(cell.name, "cut off")
                continue
            write_result(cell.path(results), record | ({"note": note} if note else {}))
            directory.checkpoint_path.unlink(missing_ok=True)  # large, and not needed any more
            _free_memory()
            yield Progress(cell.name, "done", read_result(cell.path(results)))


def run_cell(
    cell: Cell,
    config: Config,
    directory: RunDirectory,
    *,
    data: Path | None,
    clock: Clock,
    device: str,
    watch: Watch | None,
) -> Record:
    """Run one cell to its end; what is to be kept of it.

    A run that is complete but lost its file is only measured again; how long its start took is not known then.
    """
    began = time.monotonic()
    stopper = Stopper(clock)
    with watch(config) if watch else nullcontext() as watching:
        observers = [*([watching] if watching else []), stopper]
        run(config, directory.path, data=data, resume=True, observers=observers, device=device)
    start = stopper.ready - began if stopper.ready else 0.0
    try:
        return measure(cell, directory, start)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"The run in '{directory.path}' is complete but cannot be read ({error!r}): remove it to run it again."
        ) from None


def _free_memory() -> None:
    """Collect what a run leaves in cycles: captured graphs hold gigabytes of a GPU's memory until that is done."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _digest(config: Config) -> str:
    """Short, and different for another configuration: a run that was cut off is never resumed with that."""
    return blake2b(config.to_toml().encode(), digest_size=4).hexdigest()


def expected_seconds(cell: Cell, results: Path, machine: str) -> float:
    """What cells of the same study took on such a machine; 0 if nothing is known.

    The longest of the same method, in the same setting if there are any, or half as much again as the usual cell, to
    be on the safe side.
    """
    every = [found for path in sorted((results / cell.what).rglob("*.json")) if (found := read_result(path))]
    done = [result for result in every if result.device == machine]
    same = [result for result in done if result.record.get("method") == cell.method]
    if same:
        here = [result for result in same if result.record.get("setting") == cell.setting]
        return max(result.seconds for result in here or same)
    return 1.5 * statistics.median(result.seconds for result in done) if done else 0.0
