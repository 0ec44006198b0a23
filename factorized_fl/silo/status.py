"""What a person may want to know while a federation runs."""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.tables import size
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.journal import journal_path
from factorized_fl.silo.plan import Kit

_STALE = 30.0  # seconds after which a status is old news


def write_status(kit: Kit, note: str, more: Mapping[str, Any] | None = None) -> None:
    """A party's process says what it does; a full disk must not stop who only wanted to say something."""
    content = {"party": kit.party, "note": note, "updated": time.time(), **(more or {})}
    with contextlib.suppress(UserError):
        write_atomically(kit.status, json.dumps(content, indent=2).encode())


def read_status(kit: Kit) -> dict[str, Any] | None:
    """What the party's processes last said, nothing before they ever did."""
    needed = {"note", "updated"} | ({"round", "rounds", "sites"} if kit.is_coordinator else set())
    try:
        found = json.loads(kit.status.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) and needed <= set(found) else None
    except (OSError, ValueError):
        return None


def is_done(kit: Kit) -> bool:
    """Whether a site has taken part to the end and has its model."""
    status = read_status(kit)
    return status is not None and status["note"] == "done" and kit.model.is_dir()


def status_lines(kit: Kit, runs: bool = True) -> list[str]:
    """The state of things in words; `runs` says whether the party has processes here."""
    status = read_status(kit)
    if status is None:
        return [f"{kit.party} of {kit.plan.name}: {'starting' if runs else 'never started'}."]
    age = time.time() - status["updated"]
    note = status["note"]
    idle = note not in ("complete", "done") and (age > _STALE or not runs)
    if idle:
        note += f", {age:.0f} s ago: it does not {'seem to run' if runs else 'run'}"
    lines = [f"{kit.party} of {kit.plan.name}: {note}"]
    if kit.is_coordinator:
        left = status.get("seconds_left")
        more = f", about {left:.0f} s left" if left and not idle else ""
        lines.append(f"round {status['round']} of {status['rounds']}{more}")
    else:
        records = [record for record in RunDirectory(kit.run).metrics() if record["accuracy"] is not None]
        if records:
            last = records[-1]
            lines.append(
                f"round {last['round']} of {kit.config.rounds}: {100 * last['accuracy']:.2f}% of own test images; "
                f"up {size(sum(r['up_bytes'] for r in records))}, down {size(sum(r['down_bytes'] for r in records))}"
            )
    return lines


def sites_table(kit: Kit, runs: bool = True) -> Table | None:
    """The coordinator's view of the sites."""
    status = read_status(kit)
    if status is None or not kit.is_coordinator:
        return None
    table = Table()
    for heading in ("site", "connected", "doing", "images", "bad in a row", "reported accuracy", "up", "down"):
        table.add_column(heading)
    fresh = runs and time.time() - status["updated"] < _STALE  # a coordinator that was killed hears nobody
    for site in status["sites"]:
        accuracy = site["accuracy"]
        table.add_row(
            site["name"],
            "yes" if site["connected"] and fresh else "no",
            site["doing"],
            str(site.get("images") or "-"),
            str(site["strikes"]),
            "-" if accuracy is None else f"{100 * accuracy:.2f}%",
            size(site["up_bytes"]),
            size(site["down_bytes"]),
        )
    return table


def last_lines(kit: Kit, count: int = 8) -> list[str]:
    """The end of the party's journal."""
    try:
        return journal_path(kit).read_text(encoding="utf-8").splitlines()[-count:]
    except OSError:
        return []
