"""The state of a running federation, written by a party's processes and shown by `ffl federation status`."""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from rich.filesize import decimal

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.listing import NamedTable
from factorized_fl.silo.agreement import Kit, read_json
from factorized_fl.silo.sharing import shared_with

SILENT = 120.0  # seconds without a report after which a health check fails
_STALE = 30.0  # seconds after which a status no longer counts as current


def write_status(kit: Kit, note: str, more: Mapping[str, Any] | None = None) -> None:
    """Write what a party's process does now. Best-effort: a full disk is ignored."""
    content = {"party": kit.party, "note": note, "updated": time.time(), **(more or {})}
    with contextlib.suppress(UserError):
        write_atomically(kit.status, json.dumps(content, indent=2).encode())


def read_status(kit: Kit) -> dict[str, Any] | None:
    """The last status of the party, None if there is none or it is incomplete."""
    needed = {"note", "updated"} | ({"round", "rounds", "sites"} if kit.is_coordinator else set())
    found = read_json(kit.status, dict)
    return found if found is not None and needed <= found.keys() else None


def problem(kit: Kit, runs: bool, ready: bool = False) -> str:
    """Return the problem that a health check finds with a party, empty if none; `ready` also checks its connection."""
    status = read_status(kit)
    if not runs:
        return "it does not run"
    if status is None:
        return "it has not reported yet"
    if (age := time.time() - status["updated"]) > SILENT:
        return f"it has reported nothing for {age:.0f} s"
    note = str(status["note"])
    if not ready or kit.is_coordinator or note in ("done", "making the model", "waiting for the coordinator"):
        return ""
    return "" if note.startswith("at work on ") else note


def is_done(kit: Kit) -> bool:
    """True if a site has reached the end of the federation and has its model."""
    return (read_status(kit) or {}).get("note") == "done" and kit.model.is_dir()


def status_lines(kit: Kit, runs: bool = True) -> list[str]:
    """The state of a party in words; `runs` says whether the party runs on this machine."""
    status = read_status(kit)
    name = f"{kit.party} of {kit.agreement.name}"
    if status is None:
        return [f"{name}: {'starting' if runs else 'never started'}."]
    age, note = time.time() - status["updated"], status["note"]
    ended = note in ("complete", "done")
    idle = not ended and not runs  # a lock on this machine says whether it runs
    if idle:
        note += f", {age:.0f} s ago: it does not run"
    elif not ended and age > _STALE:
        note += f", for {age:.0f} s"
    lines = [f"{name}: {note}"]
    if kit.is_coordinator:
        left = status.get("seconds_left")
        more = f", about {left:.0f} s left" if left and not idle else ""
        lines.append(f"round {status['round']} of {status['rounds']}{more}")
        lines += [
            f"{site['name']} {site['shared']}" for site in status["sites"] if status["round"] and "shared" in site
        ]
    elif records := _tested(kit):
        last = records[-1]
        up, down = (decimal(sum(record[name] for record in records)) for name in ("up_bytes", "down_bytes"))
        share = f"{100 * last['accuracy']:.2f}% of own test images"
        lines.append(f"round {last['round']} of {kit.table['rounds']}: {share}; up {up}, down {down}")
        lines.append(shared_with(run_lines(kit, "timing.jsonl"), kit.party).words)
    return lines + _privacy_lines(kit)


def _privacy_lines(kit: Kit) -> list[str]:
    """Return the spent privacy budget, at the coordinator that of the site that spent most; empty without one."""
    found = [line["epsilon"] for line in run_lines(kit, "metrics.jsonl") if line.get("epsilon") is not None]
    if not found:
        return []
    budget, delta = kit.table.get("privacy_epsilon", 0.0), kit.table.get("privacy_delta", 0.0)
    who = "a site spent at most" if kit.is_coordinator else "spent"
    return [f"differential privacy: {who} epsilon {max(found):.2f} of {budget:g} (delta {delta:g})"]


def _tested(kit: Kit) -> list[dict[str, Any]]:
    """The records of a site's rounds with a test result."""
    return [record for record in run_lines(kit, "metrics.jsonl") if record.get("accuracy") is not None]


def run_lines(kit: Kit, name: str) -> list[dict[str, Any]]:
    """The lines of a file in the run directory. Not read through RunDirectory, which imports PyTorch."""
    try:
        lines = (kit.run / name).read_text(encoding="utf-8").splitlines(keepends=True)
        return [dict(json.loads(line)) for line in lines if line.endswith("\n")]  # the last line may be half written
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"'{kit.run / name}' cannot be read ({error}): restore it from a copy.") from None


def sites_table(kit: Kit, runs: bool = True) -> NamedTable | None:
    """The coordinator's table of sites, None before it has started or at a site."""
    status = read_status(kit)
    if status is None or not kit.is_coordinator:
        return None
    headings = ("connected", "doing", "images", "bad in a row", "peers", "reported accuracy", "up", "down")
    table = NamedTable(("site", *headings), left=headings[:2])
    fresh = runs and time.time() - status["updated"] < _STALE  # a killed coordinator leaves its last status
    for site in status["sites"]:
        accuracy, peers = site["accuracy"], site.get("peers")
        table.add_row(
            site["name"],
            "yes" if site["connected"] and fresh else "no",
            site["doing"],
            str(site.get("images") or "-"),
            str(site["strikes"]),
            "-" if peers is None else f"{peers:.1f}",
            "-" if accuracy is None else f"{100 * accuracy:.2f}%",
            decimal(site["up_bytes"]),
            decimal(site["down_bytes"]),
        )
    return table
