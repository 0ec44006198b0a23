"""Run a party: start its process, restart the process when it dies, and end it on Ctrl-C or SIGTERM."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from filelock import FileLock, Timeout

from factorized_fl.core.errors import Busy, UserError
from factorized_fl.core.files import plain_errors
from factorized_fl.results.schema import FEDERATION
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.finish import has_ended
from factorized_fl.silo.intruders import RefusedConnections
from factorized_fl.silo.journal import Journal, journal_path, last_lines
from factorized_fl.silo.keys import NOTICE, ExpiryWarning
from factorized_fl.silo.preflight import ConnectionCheck, check_kit, check_port, refuse_links
from factorized_fl.silo.settings import Settings, save_settings
from factorized_fl.silo.transport import FINAL, network

_LOCK = "lock"
_LOCK_WAIT = 1.0  # seconds: `is_running` holds the lock for an instant
_GRACE = 5.0
_SHORT = 10.0  # a process that lived for fewer seconds is restarted after a growing pause
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Stop(Exception):
    """Raised by the signal handler."""


def supervise(kit: Kit, show: Callable[[str], None] = lambda line: None) -> bool:
    """Run a party; True once it is done, False after Ctrl-C or SIGTERM. `show` receives new lines of the journal."""
    check_before_start(kit)
    journal = Journal(kit)
    seen = _show_new(kit, 0, lambda line: None)  # skip the lines of earlier starts
    previous = {number: signal.signal(number, _stop) for number in _SIGNALS}
    pause = 0.0
    child: subprocess.Popen[bytes] | None = None
    try:
        with exclusive_use(kit):
            if not has_ended(kit):
                network().prepare(kit)
            connection, refused = ConnectionCheck(kit, journal), RefusedConnections(kit, journal)
            expiry = ExpiryWarning(kit, journal)
            while True:
                began = time.monotonic()
                child, given = start(kit), _given(kit)
                while child.poll() is None:
                    time.sleep(0.2)
                    if _given(kit) != given and not has_ended(kit):
                        journal("a new certificate or notice of members is installed: starting again with it")
                        end(child)
                        break
                    connection.look()
                    refused.look()
                    expiry.look()
                    seen = _show_new(kit, seen, show)
                seen = _show_new(kit, seen, show)
                _kill_group(child)
                if _given(kit) != given and not has_ended(kit):
                    kit = read_kit(kit.path)
                    network().prepare(kit)
                    connection = ConnectionCheck(kit, journal)
                    continue
                if child.returncode == 0 and (kit.complete if kit.is_coordinator else has_ended(kit)):
                    return True
                if child.returncode == FINAL:
                    why = "".join(last_lines(kit, 1))[20:].removeprefix("Error: ")  # without its date and time
                    raise UserError(f"{kit.party} has stopped and would stop again: {why}")
                pause = min(30.0, 2 * pause + 1.0) if time.monotonic() - began < _SHORT else 0.5
                code = child.returncode
                journal(f"the party's process died (exit code {code}): starting it again, log/process.txt says more")
                time.sleep(pause)
    except _Stop:
        return False
    finally:
        if child is not None:
            end(child)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _given(kit: Kit) -> list[int]:
    """The times at which the files were written that the authority may replace while the party runs."""
    files = network().credentials(kit)
    paths = (files.certificate, files.key, kit.path / FEDERATION, kit.path / NOTICE)
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


def check_before_start(kit: Kit) -> None:
    """Raise UserError if the party runs already or cannot work."""
    network().require_installed()
    refuse_running(kit)
    refuse_links(kit)
    if not has_ended(kit):  # at the end no connection is needed
        check_kit(kit)
        if kit.is_coordinator:
            check_port(kit)


def is_running(kit: Kit) -> bool:
    """True if a process on this machine runs the party."""
    try:
        refuse_running(kit)
    except UserError as error:
        return isinstance(error, Busy)
    return False


def refuse_running(kit: Kit) -> None:
    """Raise Busy if the party runs: a process on this machine holds the lock of the kit."""
    if (kit.path / _LOCK).exists():
        with exclusive_use(kit, 0.0):
            pass


@contextlib.contextmanager
def exclusive_use(kit: Kit, patience: float = _LOCK_WAIT) -> Iterator[None]:
    """Hold the lock of the kit; raises Busy if another process still holds it after so many seconds."""
    lock = FileLock(kit.path / _LOCK, timeout=patience)
    with plain_errors(kit.path):
        try:
            lock.acquire()
        except Timeout:
            raise Busy(f"{kit.party} runs already: see `ffl federation status {kit.path}`.") from None
    try:
        yield
    finally:
        lock.release()


def save_choices(kit: Kit, settings: Settings) -> None:
    """Store a site's choices if it can start. A running site would use them when its trainer is restarted."""
    check_before_start(kit)
    with exclusive_use(kit):
        save_settings(kit, settings)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:  # a second signal must not interrupt the clean end
        signal.signal(each, signal.SIG_IGN)
    raise _Stop


def start(kit: Kit) -> "subprocess.Popen[bytes]":
    """Start the party's process, in a session of its own; -P: no module is imported from the kit."""
    finishing = ["-m", "factorized_fl.silo.finish", str(kit.path)]
    with (kit.logs / "process.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-u", *(finishing if has_ended(kit) else network().command(kit))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **network().environment(kit)},
        )


def end(child: "subprocess.Popen[bytes]") -> None:
    """End a party's process and its trainer."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    _kill_group(child)
    child.wait()


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the process's session: a trainer may outlive its agent."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _show_new(kit: Kit, seen: int, show: Callable[[str], None]) -> int:
    """Show the whole lines after byte `seen` of the journal; returns the position after them."""
    with contextlib.suppress(FileNotFoundError), journal_path(kit).open("rb") as file:
        file.seek(seen)
        new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").splitlines():
            show(line)
        seen += len(whole)
    return seen
