"""Reading a run directory for a person: whatever is there, and a plain note of whatever is not.

Resuming needs every file whole and refuses a damaged one; a report shows the rest. Hence readers of its own.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import Record
from factorized_fl.results.verdict import diverged, divergence_line
from factorized_fl.silo.plan import FEDERATION, RUN

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_CLIENTS, _MOST_ROUNDS = 100_000, 1_000_000  # a damaged line must not make us allocate the moon
_COUNTS = ("up_bytes", "down_bytes", "up_formula", "down_formula", "steps")


@dataclass
class RunFiles:
    """What could be read of one run directory."""

    path: Path
    config: Record
    options: Record
    environment: Record
    clients: list[Record]  # name, domain, classes, test, images
    metrics: list[Record]
    seconds: dict[int, float]  # per round
    summary: Record | None
    confusion: list[Any]
    mu_layers: list[str]
    party: str  # whose part of a federation between organisations it is; empty for a run on one machine
    notes: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The method's name, as far as is known."""
        return str(self.config.get("method") or (self.summary or {}).get("method") or "unknown method")

    @property
    def title(self) -> str:
        """The method's name in full."""
        return METHODS[self.method].card.title if self.method in METHODS else self.method

    @property
    def seed(self) -> int:
        """The run's seed; 0 if nothing says."""
        return int(_whole(self.config.get("seed")) or 0)

    @property
    def planned(self) -> int:
        """Rounds the run was to have, or those it has."""
        return _whole(self.config.get("rounds")) or self.done

    @property
    def done(self) -> int:
        """The last round there are metrics of."""
        return max((record["round"] for record in self.metrics), default=0)

    @property
    def complete(self) -> bool:
        """Whether the run said that it ended."""
        return self.summary is not None

    @property
    def final(self) -> list[Record]:
        """Every tested client's last result; the summary's where the metrics end too early."""
        last = {record["client"]: record for record in self.metrics if record["accuracy"] is not None}
        for record in self.summary["clients"] if self.summary else []:
            if record["client"] not in last or last[record["client"]]["round"] < record["round"]:
                last[record["client"]] = record
        return [last[k] for k in sorted(last)]

    def rounds_of(self, kind: str) -> list[int]:
        """The rounds that "mixing" or "traces" were kept of."""
        found = (path.stem.removeprefix("round-") for path in (self.path / kind).glob("round-*.safetensors"))
        return sorted(int(number) for number in found if number.isascii() and number.isdigit())

    def matrices(self, kind: str, round: int) -> dict[str, Array]:
        """What was kept of a round, as float64; tensors of an unexpected shape are left out."""
        path = self.path / kind / f"round-{round:04d}.safetensors"
        try:
            tensors = safetensors.numpy.load_file(path)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            self._note(f"{kind}/{path.name} cannot be read ({_reason(error)}): that round is left out.")
            return {}
        count = len(self.clients)
        found = {name: tensor.astype(np.float64) for name, tensor in tensors.items() if not name.startswith("state.")}
        return {name: tensor for name, tensor in found.items() if tensor.ndim == 2 and len(tensor) == count}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def find_runs(paths: list[Path]) -> list[Path]:
    """The run directories among and directly inside the given folders; of a party's kit, its own."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            what = "is a file, not a folder" if path.exists() else "does not exist"
            raise UserError(f"'{path}' {what}: name a run directory, or a folder of them.")
        if (path / FEDERATION).is_file():
            inside = [path / RUN]
            if not is_run(path / RUN):
                raise UserError(f"'{path}' is the kit of a party that has not begun: there is nothing to show yet.")
        else:
            inside = [path] if is_run(path) else sorted(child for child in path.iterdir() if is_run(child))
        if not inside:
            raise UserError(f"'{path}' is not a run directory and holds none: there is no config.toml.")
        found += [run for run in inside if run.resolve() not in {other.resolve() for other in found}]
    return found


def is_run(path: Path) -> bool:
    """Whether this looks like a run directory, damaged or not."""
    return path.is_dir() and any((path / name).is_file() for name in ("config.toml", "metrics.jsonl", "summary.json"))


def read_run(path: Path) -> RunFiles:
    """All there is to know of a run, but for its matrices, which are read one round at a time."""
    notes: list[str] = []
    config = _read_config(path, notes)
    raw = _read_json(path, "summary.json", notes, missing="")
    summary = _clean_summary(raw) if isinstance(raw, dict) else None
    described = _read_json(path, "clients.json", notes, missing="so clients are numbered and classes have no names")
    clients = _clean_clients(described)
    limit = len(clients) or _whole(config.get("clients")) or _MOST_CLIENTS
    metrics = _read_metrics(path, limit, notes)
    results = metrics or (summary["clients"] if summary else [])
    domains = {record["client"]: record["domain"] for record in results}
    for k in range(len(clients), 1 + max(domains, default=-1)):
        clients.append(
            {"name": f"client {k + 1}", "domain": domains.get(k, ""), "classes": [], "test": None, "images": ""}
        )
    timing = _read_lines(path, "timing.jsonl", notes, missing="so there are no times")
    expected = summary and any(client["classes"] for client in clients)  # a coordinator knows no classes
    without = "so there are no confusion matrices" if expected else ""
    analysis = _read_json(path, "analysis.json", notes, missing=without)
    analysis = analysis if isinstance(analysis, dict) else {}
    environment = _read_json(path, "environment.json", notes, missing="so versions and machine are unknown")
    run = RunFiles(
        path=path,
        config={name: value for name, value in config.items() if name != "options"},
        options=config["options"] if isinstance(config.get("options"), dict) else {},
        environment=environment if isinstance(environment, dict) else {},
        clients=clients,
        metrics=metrics,
        seconds={
            line["round"]: seconds
            for line in timing
            if _whole(line.get("round")) and (seconds := number(line.get("seconds"))) is not None
        },
        summary=summary,
        confusion=analysis["confusion"] if isinstance(analysis.get("confusion"), list) else [],
        mu_layers=_words(analysis.get("mu_layers")),
        party=_read_party(path),
        notes=notes,
    )
    if run.complete and 0 < run.done < run.planned:
        notes.append(f"metrics.jsonl ends in round {run.done} of {run.planned}: the rest is missing from the curves.")
    if run.seconds and any(round not in run.seconds for round in range(1, run.done + 1)):
        notes.append("timing.jsonl lacks some rounds, so there are no times.")
    if lost := [record["client"] for record in run.final if diverged(record)]:
        notes.append(divergence_line(lost))
    if not run.complete:
        run.notes.insert(
            0, f"Not finished: round {run.done} of {run.planned}." if run.done else "No round is done yet."
        )
    return run


def number(value: Any) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(value: Any) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).split("\n")[0]


def _text_of(path: Path, name: str, notes: list[str], missing: str) -> str | None:
    try:
        return (path / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        if missing:
            notes.append(f"{name} is missing, {missing}.")
    except (OSError, UnicodeDecodeError) as error:
        notes.append(f"{name} cannot be read ({_reason(error)}).")
    return None


def _read_party(path: Path) -> str:
    """The party whose kit holds this run, if any does."""
    try:
        return str(tomllib.loads((path.resolve().parent / FEDERATION).read_text(encoding="utf-8")).get("party", ""))
    except (OSError, ValueError):
        return ""


def _read_config(path: Path, notes: list[str]) -> Record:
    text = _text_of(path, "config.toml", notes, "so the configuration is unknown")
    try:
        table = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as error:
        notes.append(f"config.toml is damaged ({_reason(error)}): the configuration is unknown.")
        return {}
    if text and (not text.endswith("\n") or "options" not in table):  # what is left of it may still be TOML
        notes.append("config.toml is cut off: part of the configuration is unknown.")
    return table


def _read_json(path: Path, name: str, notes: list[str], missing: str) -> Any:
    text = _text_of(path, name, notes, missing)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        notes.append(f"{name} is damaged ({_reason(error)}).")
        return None


def _read_lines(path: Path, name: str, notes: list[str], missing: str) -> list[Record]:
    """Every whole line that can be read; a torn last line is what a killed process leaves."""
    text = _text_of(path, name, notes, missing) or ""
    found, bad = [], 0
    for line in text.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            found.append(record)
        elif line.endswith("\n"):
            bad += 1
    if bad:
        notes.append(f"{name}: {bad} damaged line{'s' if bad > 1 else ''} left out.")
    return found


def _read_metrics(path: Path, limit: int, notes: list[str]) -> list[Record]:
    lines = _read_lines(path, "metrics.jsonl", notes, missing="so there is nothing to see of the single rounds")
    cleaned = [_clean_metrics(line, limit) for line in lines]
    if bad := cleaned.count(None):
        notes.append(f"metrics.jsonl: {bad} line{'s' if bad > 1 else ''} without a valid round and client left out.")
    last = {(record["round"], record["client"]): record for record in cleaned if record is not None}
    return [last[key] for key in sorted(last)]


def _clean_metrics(line: Mapping[str, Any], limit: int) -> Record | None:
    round, client = _whole(line.get("round")), _whole(line.get("client"))
    if round is None or client is None or not 1 <= round <= _MOST_ROUNDS or not 0 <= client < limit:
        return None
    record: Record = {"round": round, "client": client, "domain": str(line.get("domain", ""))}
    record |= {name: _whole(line.get(name)) or 0 for name in _COUNTS}
    for name in ("up_roles", "down_roles"):
        given = line.get(name)
        roles = given if isinstance(given, dict) else {}
        record[name] = {str(role): count for role, count in roles.items() if _whole(count) is not None}
    return record | _clean_result(line)


def _clean_result(line: Mapping[str, Any]) -> Record:
    correct, total, accuracy = _whole(line.get("correct")), _whole(line.get("total")), number(line.get("accuracy"))
    if correct is None or not total or accuracy is None or not 0 <= correct <= total:
        return {"accuracy": None, "correct": None, "total": None}
    loss = {"loss": line["loss"]} if "loss" in line else {}
    return {"accuracy": accuracy, "correct": correct, "total": total, **loss}


def _clean_summary(summary: Mapping[str, Any]) -> Record:
    given = summary.get("clients")
    lines = [line for line in given if isinstance(line, dict)] if isinstance(given, list) else []
    cleaned = (_clean_metrics({"round": 1, **line}, _MOST_CLIENTS) for line in lines)
    totals = {
        name: number(summary.get(name)) for name in ("up_bytes", "down_bytes", "formula_a_bytes", "formula_b_bytes")
    }
    clients = [record for record in cleaned if record and record["accuracy"] is not None]
    return {"method": summary.get("method"), "clients": clients, **totals}


def _clean_clients(described: Any) -> list[Record]:
    if not isinstance(described, list) or not all(isinstance(client, dict) for client in described):
        return []
    return [
        {
            "name": str(client.get("name") or f"client {k + 1}"),
            "domain": str(client.get("domain", "")),
            "classes": _words(client.get("classes")),
            "test": _whole(client.get("test")),
            "images": str(client.get("images", "")),
        }
        for k, client in enumerate(described)
    ]
