"""What the operator asks of a running coordinator: a file, taken up between answers; and what came of it."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.plan import Kit

CONTROL = "control.json"
_TAKEN = "control.taken.json"
_ASIDE = "aside.json"
_KINDS = ("readmit", "exclude")
_TOO_LATE = {"readmit": "nothing is left to ask {} for", "exclude": "nothing is left to leave {} out of"}
Wishes = dict[str, list[str]]  # sites, by what is to be done with them


def ask(kit: Kit, kind: str, site: str) -> None:
    """Ask the coordinator to "readmit" a site that was set aside, or to "exclude" one; the last wish counts."""
    if RunDirectory(kit.run).summary() is not None:
        raise UserError(f"The federation {kit.plan.name} is complete: {_TOO_LATE[kind].format(site)}.")
    path = kit.path / CONTROL
    wishes = _read(path) or {}
    for each in _KINDS:
        names = {name for name in wishes.get(each, ()) if name != site} | ({site} if each == kind else set())
        wishes[each] = sorted(names)
    write_atomically(path, json.dumps(wishes).encode())


def take(kit: Kit) -> Wishes | None:
    """What was asked for since; nothing if that cannot be read. What comes before it is `done` stays for later."""
    taken = kit.path / _TAKEN
    if not taken.exists():  # else a coordinator died over it
        try:
            os.replace(kit.path / CONTROL, taken)
        except FileNotFoundError:
            return {}
    return _read(taken)


def done(kit: Kit) -> None:
    """What was asked for has been done, and will not be forgotten."""
    (kit.path / _TAKEN).unlink(missing_ok=True)


def remember_aside(kit: Kit, sites: Sequence[str]) -> None:
    """Keep who is set aside."""
    write_atomically(kit.path / _ASIDE, json.dumps(sites).encode())


def recall_aside(kit: Kit) -> set[str] | None:
    """Who was set aside last; nothing if nobody ever was."""
    try:
        return set(json.loads((kit.path / _ASIDE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _read(path: Path) -> Wishes | None:
    """Nothing if the file is missing or makes no sense."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not found.keys() <= set(_KINDS):
        return None
    lists = all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found.values())
    return found if lists else None
