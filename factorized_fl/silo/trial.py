"""A new site tries a finished federation before it joins: the site's part, in a folder of its own in the kit.

The trial has two rounds. In the first the site trains by itself, so that the coordinator can match it; in the second it
begins with the tensors that the federation has for a site like it. Its control trains as long without the federation.
The coordinator keeps nothing of the trial (`visits`).
"""

import json
import shutil
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.schema import FEDERATION
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.preflight import check_kit
from factorized_fl.silo.transport import network

ROUNDS_OF_A_TRIAL = 2
_FOLDER, _MARK, _OPEN = "trial", "visit", "visitors"


def make_trial(kit: Kit) -> Kit:
    """The kit of a trial, a copy with the same certificate; one that was interrupted is continued."""
    if kit.is_coordinator:
        raise UserError(f"'{kit.path}' is the coordinator's kit: only a site can try a federation.")
    if kit.table.get("protect") == "encrypt":
        raise UserError(f"{kit.agreement.name} encrypts for its own sites: a new one cannot try it.")
    if kit.table["rounds"] < ROUNDS_OF_A_TRIAL:
        raise UserError(f"{kit.agreement.name} has one round, and a trial needs two: ask for more rounds.")
    check_kit(kit)
    place, source = kit.path / _FOLDER, network().credentials(kit)
    with plain_errors(kit.path):
        if (place / "model").exists() or not (place / _MARK).exists():
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(kit.path / FEDERATION, place)
        trial = read_kit(place)
        for old, new in zip(source, network().credentials(trial), strict=True):
            new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(old, new)
        write_atomically(place / _MARK, b"")
    return trial


def end_trial(trial: Kit) -> str:
    """Removes the copy of the key; returns the result of the trial in words."""
    shutil.rmtree(network().credentials(trial).key.parent, ignore_errors=True)
    path = trial.model / "model.json"
    if not path.is_file():
        raise UserError(f"The trial in '{trial.path}' has no model: its journal says why.")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = f"With the federation: {100 * results['accuracy']:.1f}% of {results['images']} own test images"
    if results.get("reference") is not None:
        found += f"; alone, after as much training: {100 * results['reference']:.1f}%"
    return f"{found}. One trial cannot decide. The model: {trial.model}"


def is_trial(kit: Kit) -> bool:
    """True for the kit of a trial."""
    return (kit.path / _MARK).exists()


def set_visitors(kit: Kit, welcome: bool) -> None:
    """Stores whether the coordinator receives visitors once all rounds are done."""
    path: Path = kit.path / _OPEN
    with plain_errors(kit.path):
        if welcome:
            write_atomically(path, b"")
        else:
            path.unlink(missing_ok=True)


def receives_visitors(kit: Kit) -> bool:
    """True if the coordinator receives visitors once all rounds are done."""
    return (kit.path / _OPEN).exists()
