"""Requests of the operator to a running coordinator: a file that the coordinator reads between answers."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.silo.agreement import Kit, read_json

CONTROL = "control.json"
_TAKEN = "control.taken.json"
_ASIDE = "aside.json"
_TOO_LATE = {
    "readmit": "nothing is left to ask {} for",
    "exclude": "nothing is left to leave {} out of",
}  # errors after the last round, by kind of request
Wishes = dict[str, list[str]]  # the names of sites, by the kind of request


def ask(kit: Kit, kind: str, site: str) -> None:
    """Ask the coordinator to "readmit" a quarantined site, or to "exclude" a site; the last request counts."""
    if kit.complete:
        raise UserError(f"The federation {kit.agreement.name} is complete: {_TOO_LATE[kind].format(site)}.")
    path = kit.path / CONTROL
    wishes = _read(path) or {}
    for each in _TOO_LATE:
        wishes[each] = sorted({*wishes.get(each, ())} - {site} | ({site} if each == kind else set()))
    write_atomically(path, json.dumps(wishes).encode())


def take(kit: Kit) -> Wishes | None:
    """The open requests, None if they cannot be read. Requests made before `done` is called are kept for later."""
    taken = kit.path / _TAKEN
    if not taken.exists():  # it exists if a coordinator died before it called `done`
        try:
            os.replace(kit.path / CONTROL, taken)
        except FileNotFoundError:
            return {}
    return _read(taken)


def done(kit: Kit) -> None:
    """Delete the requests that `take` returned, once they are carried out."""
    (kit.path / _TAKEN).unlink(missing_ok=True)


def remember_aside(kit: Kit, sites: Sequence[str]) -> None:
    """Store the names of the quarantined sites."""
    write_atomically(kit.path / _ASIDE, json.dumps(sites).encode())


def recall_aside(kit: Kit) -> list[str] | None:
    """The names of the quarantined sites as last stored, None if they never were or cannot be read."""
    return read_json(kit.path / _ASIDE, list)


def _read(path: Path) -> Wishes | None:
    """The requests in a file, None if the file is missing or invalid."""
    found = read_json(path, dict)
    if found is None or not found.keys() <= _TOO_LATE.keys():
        return None
    lists = all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found.values())
    return found if lists else None
