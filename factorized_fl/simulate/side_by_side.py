"""Whole runs side by side, in processes that share the memory of this machine."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import torch

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.simulate.run import run_federation

_LOOK = 0.2  # seconds between looks at the memory
_RESERVE = 0.05  # of the machine's memory that stays free
_KILLED = -9  # the exit code of a process that the system ended, as it does where memory runs out

Run = Callable[[], str | None]


@dataclass
class _Worker:
    """A process that makes one run after the other."""

    process: Any
    pipe: Any
    index: int | None = None  # of the run that it makes now

    def give(self, index: int) -> None:
        self.index = index
        self.pipe.send_bytes(str(index).encode())

    def take(self) -> tuple[str, str] | None:
        """Return the text and the error of the run that has ended; None if the process itself has ended."""
        try:
            text, error = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        return text, error


def threads_for(jobs: int) -> int:
    """Return the threads of each of so many processes that share the machine's cores."""
    return max(1, (os.cpu_count() or 1) // jobs)


def run_side_by_side(
    runs: Sequence[Run], jobs: int, start: Literal["spawn", "fork"] = "spawn", threads: int = 0
) -> Iterator[tuple[int, str]]:
    """Call the functions in at most `jobs` processes; yield the number and the text of each when it ends.

    A process more is started only if the memory has room for one as large as the largest so far. If memory runs out
    nevertheless, the process that began last is ended, and its function is called again later, so each function must
    be able to continue an interrupted run.

    Args:
        runs: functions without arguments that return a text or None. With `spawn` they must be importable.
        jobs: the largest number of processes.
        start: "spawn" for new processes, "fork" for copies of this one.
        threads: the threads of each process; 0: the machine's cores divided by `jobs`.

    Raises:
        UserError: with the message of the first function that raised one, or if a process has ended by itself.
    """
    context = multiprocessing.get_context(start)
    waiting, workers, limit = list(reversed(range(len(runs)))), list[_Worker](), jobs
    serve = partial(_serve, runs, threads or threads_for(jobs))
    try:
        while waiting or any(worker.index is not None for worker in workers):
            idle = [worker for worker in workers if worker.index is None]
            if waiting and not idle and len(workers) < limit and _has_room(workers):
                pipe, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
                _start(process)
                theirs.close()
                workers.append(_Worker(process, pipe))
                idle = workers[-1:]
            for worker in idle[: len(waiting)]:
                worker.give(waiting.pop())
            busy = [worker for worker in workers if worker.index is not None]
            ready = wait([worker.pipe for worker in busy], _LOOK)
            for worker in [worker for worker in busy if worker.pipe in ready]:
                assert worker.index is not None
                index, worker.index = worker.index, None
                if (found := worker.take()) is not None:
                    text, error = found
                    if error:
                        raise UserError(error)
                    yield index, text
                    continue
                worker.process.join()
                workers.remove(worker)
                if worker.process.exitcode != _KILLED or len(busy) < 2:
                    raise UserError(f"A run has ended with exit code {worker.process.exitcode}: repeat the command.")
                waiting.append(index)
                limit = max(1, len(workers))
            if _is_short() and len(active := [worker for worker in workers if worker.index is not None]) > 1:
                last = active[-1]
                _end(last)
                workers.remove(last)
                assert last.index is not None
                waiting.append(last.index)
                limit = len(workers)
    finally:
        for worker in workers:
            _end(worker)


def run_configs(
    runs: Sequence[tuple[Config, Path]], jobs: int, data: Path | None, resume: bool, device: str
) -> Iterator[Config]:
    """Make runs in their directories, several at a time; yield the configuration of each that ends.

    Raises UserError as `run_federation` does, which also explains `data`, `resume` and `device`.
    """
    if jobs < 1:
        raise UserError(f"jobs = {jobs} must be 1 or more.")
    # A run that is ended for want of memory is continued later.
    work = [partial(_run, config, out, data, resume or not out.exists(), device) for config, out in runs]
    for index, _ in run_side_by_side(work, jobs):
        yield runs[index][0]


def _run(config: Config, out: Path, data: Path | None, resume: bool, device: str) -> None:
    run_federation(config, out, data=data, resume=resume, device=device)


def _serve(runs: Sequence[Run], threads: int, pipe: Any) -> None:
    """Make the runs whose numbers arrive, until the process that sends them has ended."""
    torch.set_num_threads(threads)
    parent = os.getppid()
    while True:
        while not pipe.poll(1.0):  # a forked process does not see the end of a pipe that its siblings hold as well
            if os.getppid() != parent:
                return
        index = int(pipe.recv_bytes())
        text, error = "", ""
        try:
            text = runs[index]() or ""
        except UserError as raised:
            error = Exception.__str__(raised)
        pipe.send_bytes(json.dumps((text, error)).encode())


def _start(process: Any) -> None:
    """Start a process that ignores Ctrl-C, which a terminal sends to all processes: this process ends it."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may change the handling
        process.start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _end(worker: _Worker) -> None:
    worker.process.terminate()
    worker.process.join()
    worker.pipe.close()


def _has_room(workers: Sequence[_Worker]) -> bool:
    """Return whether the memory has room for one more process as large as the largest of these."""
    free, total = memory()
    return not workers or free - _RESERVE * total > max(_peak(worker.process.pid) for worker in workers)


def _is_short() -> bool:
    free, total = memory()
    return free < _RESERVE * total


def memory() -> tuple[int, int]:
    """Return the bytes of memory that are available, and all there are; (1, 1) where the system does not say."""
    found = _entries(Path("/proc/meminfo"))
    return found.get("MemAvailable", 1), found.get("MemTotal", 1)


def _peak(process: int) -> int:
    """Return the largest number of bytes that a process has had in memory; 0 where the system does not say."""
    return _entries(Path(f"/proc/{process}/status")).get("VmHWM", 0)


def _entries(path: Path) -> dict[str, int]:
    """Return the sizes in a file of Linux, in bytes; empty if there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: 1024 * int(value.split()[0]) for name, value in pairs}
