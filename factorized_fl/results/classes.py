"""The classes that were matched in a run: classes.json, and the table for people and spreadsheets.

Classes are written by number: a site knows the names of its own classes only, and a coordinator none.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from factorized_fl.config import read_table
from factorized_fl.core.classes import CONFIDENCE, PEERS, TAKEN
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.results import schema
from factorized_fl.results.reading import RESTORE, RunReader
from factorized_fl.results.schema import Record, as_record

Report = Mapping[str, torch.Tensor]


def save_classes(run: Path, round_number: int, reports: Mapping[int, Report]) -> None:
    """Writes the reports on classes that some clients received in a round; entries of other clients stay."""
    if not reports:
        return
    entries = read_classes(RunReader(run, strict=False)) | {
        str(k): {"round": round_number, "classes": _entries(report)} for k, report in reports.items()
    }
    ordered = {k: entries[k] for k in sorted(entries, key=int)}
    write_atomically(run / schema.CLASSES, (json.dumps(ordered, indent=1) + "\n").encode())


def _entries(report: Report) -> list[Record]:
    """One entry for each matched class of one client."""
    found = []
    for number, (confidence, taken) in enumerate(zip(report[CONFIDENCE].tolist(), report[TAKEN].tolist(), strict=True)):
        if confidence > 0:
            peers = [[k, int(other) - 1] for k, other in enumerate(report[PEERS][number].tolist()) if other > 0]
            found.append(
                {"class": number, "confidence": round(confidence, 4), "taken": round(taken, 4), "peers": peers}
            )
    return found


def read_classes(reader: RunReader) -> Record:
    """The content of classes.json, by client; empty if there is none."""
    return as_record(reader.read_json(schema.CLASSES, RESTORE, fits=lambda found: isinstance(found, dict)))


@dataclass(frozen=True)
class MatchedClass:
    """One class of a client, and the class of one other client that it was matched with; None without a match."""

    client: str
    number: int  # of the class, counted from 1
    name: str
    peer: str | None = None
    peer_number: int | None = None
    confidence: float = 0.0
    taken: float = 0.0  # the share of the class's row that came from other clients
    right: bool | None = None  # whether the match is right, where the names of both classes are known


def run_and_sites(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The run directory of a run or a kit, and the names of all sites if a kit holds it."""
    kit = path if (path / schema.FEDERATION).is_file() else path.resolve().parent
    if not (kit / schema.FEDERATION).is_file():
        return path, ()
    agreement = read_table(kit / schema.FEDERATION).get("federation", {})
    return kit / schema.RUN, tuple(agreement.get("sites", ()))


def matched_classes(run: Path, sites: Sequence[str] = ()) -> list[MatchedClass]:
    """One entry for each match of each client's classes, and one for each class without a match.

    `sites` are the names of all sites where the run is that of one site. Raises UserError if no classes were matched in
    this run.
    """
    reader = RunReader(run)
    entries, clients = read_classes(reader), reader.clients()
    if reader.config_table().get("align", "off") == "off":
        raise UserError(f"'{run}' did not match classes: run it with --set align=statistics.")
    found = []
    for k, client in enumerate(clients):
        names = dict(enumerate(client["classes"]))
        matched = {entry["class"]: entry for entry in as_record(entries.get(str(k))).get("classes", [])}
        # A coordinator knows neither names nor numbers of classes, only those that were matched.
        for number, name in (names or dict.fromkeys(matched, "")).items():
            own = (client["name"], number + 1, name)
            entry = matched.get(number, {"peers": []})
            for peer, other in entry["peers"]:
                right = None if sites or not names else _same_class(client, clients[peer], name, other)
                peer_name = sites[peer] if sites else clients[peer]["name"]
                found.append(MatchedClass(*own, peer_name, other + 1, entry["confidence"], entry["taken"], right))
            if not entry["peers"]:
                found.append(MatchedClass(*own))
    return found


def judge_rows(rows: Iterable[MatchedClass]) -> tuple[int, int]:
    """The number of right matches, and of those that can be judged; both sides of a match count once."""
    judged = {
        frozenset([(row.client, row.number), (row.peer, row.peer_number)]): row.right
        for row in rows
        if row.right is not None
    }
    return sum(judged.values()), len(judged)


def _same_class(client: Record, peer: Record, name: str, number: int) -> bool:
    """Whether class `number` of a peer is the class of that name; only a simulation has both names."""
    return client["domain"] == peer["domain"] and peer["classes"][number] == name
