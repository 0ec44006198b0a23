"""A party's view of its running federation: a document for a page, and metrics for Prometheus.

Everything is read from the party's own kit: a site sees itself, the coordinator what sites send it. This module does
not import PyTorch.
"""

import time
from collections.abc import Iterator
from typing import Any

from factorized_fl import __version__
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.journal import last_lines
from factorized_fl.silo.sharing import shared_with
from factorized_fl.silo.status import problem, read_status, run_lines
from factorized_fl.silo.supervise import is_running

_STALE = 30.0  # seconds after which a status no longer counts as current
_JOURNAL = 60  # lines
_ENDED = ("complete", "done")


def live_document(kit: Kit) -> dict[str, Any]:
    """Return the state of a party: its current work, rounds, sites, bytes, peers, privacy budget and journal."""
    status, timing = read_status(kit) or {}, run_lines(kit, "timing.jsonl")
    runs = is_running(kit)
    current = runs and time.time() - status.get("updated", 0) < _STALE  # a killed party leaves its last status
    sites = [
        site | {"connected": site["connected"] and current, "waited_for": site.get("waited_for", False) and current}
        for site in status.get("sites", [])
    ]
    records = run_lines(kit, "metrics.jsonl")
    own = [] if kit.is_coordinator else records
    up, down = (sum(row[name] for row in (sites if kit.is_coordinator else own)) for name in ("up_bytes", "down_bytes"))
    return {
        "version": __version__,
        "title": f"{kit.party} of {kit.agreement.name}",
        "party": kit.party,
        "coordinator": kit.is_coordinator,
        "method": kit.table.get("method"),
        "note": status.get("note", "starting" if runs else "never started"),
        "runs": runs,
        "current": current,
        "ended": status.get("note") in _ENDED,
        "rounds": kit.table.get("rounds"),
        "done": len(timing),
        "seconds_left": status.get("seconds_left") if current else None,
        "up_bytes": up,
        "down_bytes": down,
        "sites": sites,
        "timing": [
            {"round": line["round"], "seconds": line["seconds"], "from_others": line.get("from_others", {})}
            for line in timing
        ],
        "accuracy": _accuracies(kit, records),
        "peers": next(
            (row["effective_peers"] for row in reversed(own) if row.get("effective_peers") is not None), None
        ),
        "shared": "" if kit.is_coordinator else shared_with(timing, kit.party).words,
        "reported": [
            {"site": row["domain"], "metrics": row["clinical"]}
            for row in records
            if kit.is_coordinator and row.get("clinical")
        ],
        "privacy": status.get("privacy") or _spent(kit, records),
        "journal": last_lines(kit, _JOURNAL),
    }


def _accuracies(kit: Kit, records: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return by site the rounds with an accuracy that this party knows, and that accuracy."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in records:
        if row.get("accuracy") is not None:
            name = row["domain"] if kit.is_coordinator else kit.party
            found.setdefault(name, []).append((row["round"], row["accuracy"]))
    return found


def _spent(kit: Kit, records: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the privacy budget spent so far, at the coordinator the largest of any site; None without a budget."""
    spent = {row["client"]: row["epsilon"] for row in records if row.get("epsilon") is not None}
    if not spent:
        return None
    limits = {"limit": kit.table.get("privacy_epsilon"), "delta": kit.table.get("privacy_delta")}
    return {"epsilon": max(spent.values()), **{name: limit for name, limit in limits.items() if limit}}


def check_now(kit: Kit, ready: bool = False) -> str:
    """Return the problem of a party that is not done, "" without one; `ready` as in `problem`."""
    ended = (read_status(kit) or {}).get("note") in _ENDED
    return "" if ended else problem(kit, is_running(kit), ready)


def prometheus_text(kit: Kit) -> str:
    """Return the party's metrics in the text format of Prometheus."""
    document = live_document(kit)
    lines = []
    for name, kind, told, samples in _families(kit, document):
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value:.17g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(kit: Kit, document: dict[str, Any]) -> Iterator[tuple[str, str, str, list[tuple[dict[str, str], float]]]]:
    """Yield name, type, help and samples of each metric."""

    def single(value: float) -> list[tuple[dict[str, str], float]]:
        return [({}, value)]

    yield "ffl_up", "gauge", "Whether the party's process runs.", single(document["runs"])
    yield "ffl_ready", "gauge", "Whether the party can take part.", single(not check_now(kit, ready=True))
    yield "ffl_rounds_total", "counter", "Rounds that this party has completed.", single(document["done"])
    yield "ffl_rounds_planned", "gauge", "Rounds of the federation.", single(document["rounds"] or 0)
    seconds = sum(line["seconds"] for line in document["timing"])
    yield "ffl_round_seconds_total", "counter", "Seconds of all completed rounds.", single(seconds)
    moved = [({"direction": way}, document[f"{way}_bytes"]) for way in ("up", "down")]
    yield "ffl_bytes_total", "counter", "Bytes of tensors that sites sent (up) and received (down).", moved
    if (status := read_status(kit)) is not None:
        age = time.time() - status["updated"]
        yield "ffl_status_age_seconds", "gauge", "Seconds since the party wrote its status.", single(age)
    if kit.is_coordinator:
        sites = document["sites"]
        yield "ffl_sites", "gauge", "Sites of the federation.", single(len(kit.agreement.sites))
        yield "ffl_sites_connected", "gauge", "Sites that are connected.", single(sum(s["connected"] for s in sites))
        waited = sum(site["waited_for"] for site in sites)
        yield "ffl_sites_waited_for", "gauge", "Sites whose answer is due.", single(waited)
        refused = [({"site": site["name"]}, site.get("refused", 0)) for site in sites]
        yield "ffl_refused_messages_total", "counter", "Messages of a site that failed a check.", refused
    elif document["peers"] is not None:
        yield "ffl_effective_peers", "gauge", "Effective peers of the last download.", single(document["peers"])
    privacy = document["privacy"]
    if isinstance(privacy, dict) and isinstance(privacy.get("epsilon"), int | float):
        yield "ffl_privacy_epsilon", "gauge", "Privacy budget spent so far.", single(privacy["epsilon"])


def _labels(labels: dict[str, str]) -> str:
    """Return labels as Prometheus writes them; names of sites hold no character that needs an escape."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
