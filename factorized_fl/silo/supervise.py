"""Keep a party's FLARE process alive: start it, start it again when it dies, stop it when asked to."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.finish import has_ended
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.kits import make_workspace
from factorized_fl.silo.messages import LIMIT
from factorized_fl.silo.plan import Kit
from factorized_fl.silo.preflight import Way, check_kit, check_port, refuse_links
from factorized_fl.silo.settings import Settings, save_settings

_PIDS = "processes.json"
_GRACE = 5.0
_SHORT = 10.0  # a process that lived for less is started again more and more slowly
REFUSED_SITE = 77  # exit code of an agent whose site the coordinator refuses: to start it again would not help
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Stop(Exception):
    """Somebody asked this party to stop."""


def supervise(kit: Kit, show: Callable[[str], None] = lambda line: None) -> bool:
    """Run a party until it is done (true) or told to stop (false)."""
    look_before(kit)
    journal = Journal(kit)
    seen = _end_of(kit)
    previous = {number: signal.signal(number, _stop) for number in _SIGNALS}
    pause = 0.0
    child: subprocess.Popen[bytes] | None = None
    try:
        with RunDirectory(kit.logs).lock():
            (kit.path / _PIDS).unlink(missing_ok=True)  # of one that was killed
            if not has_ended(kit):
                make_workspace(kit)
            way = Way(kit, journal)
            while True:
                began = time.monotonic()
                child = _start(kit)
                write_atomically(kit.path / _PIDS, json.dumps({"supervisor": os.getpid(), "flare": child.pid}).encode())
                while child.poll() is None:
                    time.sleep(0.2)
                    way.look()
                    seen = _show_new(kit, seen, show)
                seen = _show_new(kit, seen, show)
                _kill_group(child)
                if child.returncode == 0 and _is_over(kit):
                    return True
                if child.returncode == REFUSED_SITE:
                    raise UserError(f"The coordinator refused {kit.party}: the journal's last line says why.")
                pause = min(30.0, 2 * pause + 1.0) if time.monotonic() - began < _SHORT else 0.5
                code = child.returncode
                journal(f"FLARE's process died (exit code {code}): starting it again, log/flare.txt says more")
                time.sleep(pause)
    except _Stop:
        return False
    finally:
        if child is not None:
            _end(child)
        (kit.path / _PIDS).unlink(missing_ok=True)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_over(kit: Kit) -> bool:
    """Whether nothing is left to do: that a process ended in peace says little."""
    return RunDirectory(kit.run).summary() is not None if kit.is_coordinator else has_ended(kit)


def look_before(kit: Kit) -> None:
    """Refuse to start what cannot work, or runs already."""
    if importlib.util.find_spec("nvflare") is None:
        raise UserError('Federations between organisations need FLARE: pip install "factorized-fl[network]".')
    refuse_running(kit)
    refuse_links(kit)
    if has_ended(kit):
        return  # nobody else is needed
    check_kit(kit)
    if kit.is_coordinator:
        check_port(kit)


def refuse_running(kit: Kit) -> None:
    """Refuse what would disturb a party that runs."""
    if processes(kit):
        raise UserError(f"{kit.party} runs already: see `ffl federation status {kit.path}`.")


def settle(kit: Kit, settings: Settings) -> None:
    """Keep a site's choices once nothing speaks against its start."""
    look_before(kit)
    with RunDirectory(kit.logs).lock():  # a site that runs would take them up as soon as its trainer is started again
        save_settings(kit, settings)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:  # once is enough
        signal.signal(each, signal.SIG_IGN)
    raise _Stop


def _start(kit: Kit) -> "subprocess.Popen[bytes]":
    """The party's program, in a session of its own; -P: modules come from no kit."""
    command = [sys.executable, "-P", "-u", "-m", *(_finishing(kit) if has_ended(kit) else _flare(kit))]
    limit = str(max(kit.plan.largest, 1_000_000))
    with (kit.logs / "flare.txt").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, LIMIT: limit},
        )


def _finishing(kit: Kit) -> list[str]:
    """What a site needs that has been told the end."""
    return ["factorized_fl.silo.finish", str(kit.path)]


def _flare(kit: Kit) -> list[str]:
    """FLARE's own program for this kind of party."""
    kind, config = ("server", "fed_server.json") if kit.is_coordinator else ("client", "fed_client.json")
    who = [f"org={kit.party}", *([] if kit.is_coordinator else [f"uid={kit.party}"])]
    where = ["-m", str(kit.workspace), "-s", config, "--set", "secure_train=true", "config_folder=config"]
    return [f"nvflare.private.fed.app.{kind}.{kind}_train", *where, *who]


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    _kill_group(child)
    child.wait()


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    """A trainer may have outlived its agent."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _end_of(kit: Kit) -> int:
    path = journal_path(kit)
    return path.stat().st_size if path.exists() else 0


def _show_new(kit: Kit, seen: int, show: Callable[[str], None]) -> int:
    """Print what was added to the journal; returns how far that is."""
    path = journal_path(kit)
    if not path.exists():
        return seen
    with path.open("rb") as file:
        file.seek(seen)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        show(line)
    return seen + len(whole)


def processes(kit: Kit) -> dict[str, int]:
    """The process ids of a running party, empty if it does not run: then nobody holds the lock on its logs.

    The file alone proves nothing: after a crash its numbers may be those of somebody else's processes.
    """
    try:
        pids: dict[str, int] = json.loads((kit.path / _PIDS).read_text())
        with RunDirectory(kit.logs).lock():
            return {}
    except UserError:
        return pids
    except (OSError, ValueError):
        return {}


def start_in_background(kit: Kit) -> None:
    """Leave a supervisor running that outlives this process and its terminal."""
    look_before(kit)
    with plain_errors(kit.logs):
        kit.logs.mkdir(parents=True, exist_ok=True)
    if os.fork():
        return
    code = 1
    try:
        os.setsid()
        with (kit.logs / "supervisor.txt").open("a", encoding="utf-8") as log, open(os.devnull, "rb") as nothing:
            for stream, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(stream.fileno(), target)
            code = _supervise_unseen(kit, log)
    finally:
        os._exit(code)


def _supervise_unseen(kit: Kit, log: TextIO) -> int:
    """Supervise where nobody looks: whatever ends it is in the journal; returns the exit code."""
    try:
        supervise(kit)
    except UserError as error:
        Journal(kit)(f"Error: {error}")
        return 1
    except BaseException as error:
        traceback.print_exc(file=log)
        log.flush()
        Journal(kit)(f"the supervisor was ended by an error ({error!r}): log/supervisor.txt says more")
        return 1
    return 0


def stop(kit: Kit) -> None:
    """Tell a running party to stop and wait until it has; nothing is lost."""
    pids = processes(kit)
    if not pids:
        raise UserError(f"{kit.party} does not run.")
    os.kill(pids["supervisor"], signal.SIGTERM)
    until = time.monotonic() + 3 * _GRACE
    while processes(kit) and time.monotonic() < until:
        time.sleep(0.1)
