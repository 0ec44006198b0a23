"""Starts the processes that simulate one federation together on this machine."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.errors import UserError

_PATIENCE = 10.0  # seconds in which the others end by themselves after one process has ended


def launch(command: Sequence[str], processes: int) -> int:
    """Run a command in so many processes and return its exit code.

    The first process has this one's terminal. If a process fails, the others end, and UserError says which one it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{rank}.txt" for rank in range(processes)]
        started = [_start(command, rank, processes, logs[rank]) for rank in range(processes)]
        try:
            failed = _wait(started)
        except KeyboardInterrupt:  # the terminal sends Ctrl-C to all processes
            _end(started)
            return 130
        except BaseException:
            _end(started, patience=0.0)
            raise
        if failed is None:
            return 0
        if failed == 0 and started[0].returncode > 0:
            return started[0].returncode  # the first process has printed its own message
        raise UserError(f"Process {failed + 1} of {processes} has ended ({_cause(started[failed], logs[failed])}).")


def _start(command: Sequence[str], rank: int, processes: int, log: Path) -> "subprocess.Popen[bytes]":
    place = {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    env = {**os.environ, **place, "FFL_RENDEZVOUS": f"file://{log.parent / 'rendezvous'}"}
    if rank == 0:
        return subprocess.Popen(command, env=env)
    with log.open("wb") as file:
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=file, stdin=subprocess.DEVNULL)


def _wait(started: Sequence["subprocess.Popen[bytes]"]) -> int | None:
    """Wait for all processes; return the number of the one that failed first, None if all succeeded."""
    while True:
        codes = [process.poll() for process in started]
        if failed := [rank for rank, code in enumerate(codes) if code]:
            _end(started)
            # The others fail because this one did; a process that was killed is the cause rather than the victim.
            return next((rank for rank in failed if codes[rank] < 0), failed[0])  # type: ignore[operator]
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.05)


def _end(started: Sequence["subprocess.Popen[bytes]"], patience: float = _PATIENCE) -> None:
    """Wait for the processes to end, and end them if they do not."""
    deadline = time.monotonic() + patience
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(process: "subprocess.Popen[bytes]", log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    if process.returncode < 0:
        return f"{_signal(process.returncode)}: repeat the command with --resume"
    return (lines[-1] if lines else f"exit code {process.returncode}").removeprefix("Error: ").rstrip(".")


def _signal(code: int) -> str:
    return f"killed by signal {signal.Signals(-code).name}"


def relaunch(processes: int) -> int:
    """Run this process's own command in so many processes; raise UserError for an impossible number."""
    if not 1 < processes <= 1024:
        raise UserError(f"--processes {processes} must be from 2 to 1024, or left out.")
    arguments = list(sys.argv[1:])
    for index, argument in enumerate(arguments):
        if argument == "--processes":
            del arguments[index : index + 2]
            break
        if argument.startswith("--processes="):
            del arguments[index]
            break
    return launch([sys.executable, "-m", "factorized_fl", *arguments], processes)
