"""The reader of run directories: strict for the program, lenient for the page.

A strict reader raises UserError at the first damaged file, because a run must not be continued from one. A lenient
reader returns all that can be read and keeps a note of each file or line that cannot.
"""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from factorized_fl.config import read_table, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import dense, weights_from
from factorized_fl.results import schema
from factorized_fl.results.schema import ClientEntry, FinalResult, MetricsLine, Record, Summary, as_record
from factorized_fl.results.words import divergence_line, method_title

Matrix = np.ndarray[Any, np.dtype[Any]]

RESTORE = "restore the file, or remove the checkpoint, and summary.json if there is one, to start this run again."


class RunReader:
    """Reads the files of one run directory."""

    def __init__(self, path: Path | str, strict: bool = True) -> None:
        self.path = Path(path)
        self.strict = strict
        self.notes: list[str] = []  # of a lenient reader: the files and lines that could not be read

    def config_table(self) -> Record:
        """Return the parsed config.toml."""
        if self.strict:
            return upgrade(read_table(self.path / schema.CONFIG))
        content = self._read(schema.CONFIG, "so the configuration is unknown") or b""
        try:
            text = content.decode()
            table = tomllib.loads(text)
        except ValueError as error:  # not UTF-8, or not TOML
            self.notes.append(f"{schema.CONFIG} is damaged ({_reason(error)}): the configuration is unknown.")
            return {}
        if text and (not text.endswith("\n") or "options" not in table):  # the rest may still be valid TOML
            self.notes.append(f"{schema.CONFIG} is cut off: part of the configuration is unknown.")
        return upgrade(table)

    def clients(self) -> list[Record]:
        """Return the entries of clients.json in order; empty if there are none."""
        found = self.read_json(
            schema.CLIENTS,
            RESTORE,
            "so clients are numbered and classes have no names",
            lambda found: isinstance(found, list) and all("name" in as_record(client) for client in found),
        )
        return found if isinstance(found, list) and all(isinstance(client, dict) for client in found) else []

    def metrics(self) -> list[Record]:
        """Return all lines of metrics.jsonl, with clients counted from 0."""
        lines = self._lines(schema.METRICS, "so there is nothing to see of the single rounds")
        return [schema.numbered_from_0(line) for line in lines]

    def timing(self) -> list[Record]:
        """Return all lines of timing.jsonl."""
        return self._lines(schema.TIMING, "so there are no times")

    def summary(self) -> Record | None:
        """Return the content of summary.json; None if the run is not complete."""
        advice = "remove it, then --resume writes it again."
        found = self.read_json(
            schema.SUMMARY, advice, fits=lambda found: isinstance(as_record(found).get("clients"), list)
        )
        if not isinstance(found, dict):
            return None
        clients = found.get("clients")
        known = [schema.numbered_from_0(as_record(one)) for one in clients] if isinstance(clients, list) else clients
        return found | {"clients": known} if "clients" in found else found

    def analysis(self, missing: str = "") -> Record:
        """Return the content of analysis.json; empty if there is none."""
        advice = f"remove it and {schema.SUMMARY}, then --resume writes them again."
        return as_record(self.read_json(schema.ANALYSIS, advice, missing))

    # -- how a file is read

    def _fault(self, name: str, what: str, advice: str) -> None:
        """Raise UserError with the fault of a file and what to do; a lenient reader keeps a note of it."""
        if self.strict:
            raise UserError(f"'{self.path / name}' {what}: {advice}") from None
        self.notes.append(f"{name} {what}.")

    def _read(self, name: str, missing: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            if missing:
                self.notes.append(f"{name} is missing, {missing}.")
        except OSError as error:
            self._fault(name, f"cannot be read ({_reason(error)})", "make it readable; no data was lost.")
        return None

    def read_json(self, name: str, advice: str, missing: str = "", fits: Callable[[Any], bool] | None = None) -> Any:
        """Return the content of a JSON file; None if it is missing. Only a strict reader checks that it `fits`."""
        content = self._read(name, missing)
        if content is None:
            return None
        try:
            found = json.loads(content.decode())
            if self.strict and fits and not fits(found):
                raise ValueError("it lists no clients")
            return found
        except (ValueError, RecursionError) as error:
            self._fault(name, f"is damaged ({_reason(error)})", advice)
        return None

    def _lines(self, name: str, missing: str) -> list[Record]:
        """Return the records of a file of lines, without the incomplete last line that a killed process leaves."""
        lines = [_parse_line(line, self.strict) for line in (self._read(name, missing) or b"").split(b"\n")]
        rest = lines.pop()
        damaged = [at for at, line in enumerate(lines, start=1) if line is None]
        if damaged and self.strict:
            raise UserError(f"'{self.path / name}', line {damaged[0]}, is damaged: {RESTORE}")
        if damaged:
            self.notes.append(f"{name}: {len(damaged)} damaged line{'s' if len(damaged) > 1 else ''} left out.")
        return [line for line in (lines if self.strict else [*lines, rest]) if line is not None]


@dataclass
class RunFiles:
    """The cleaned content of one run directory."""

    path: Path
    config: Record
    options: Record
    environment: Record
    clients: list[ClientEntry]
    metrics: list[MetricsLine]
    seconds: dict[int, float]  # per round
    summary: Summary | None
    confusion: list[Any]
    mu_layers: list[str]
    metric: str  # the primary metric; "-" before its name if less is better
    party: str  # the party of a federation between organisations that has this run; empty for a run on one machine
    notes: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        """Return the method's name, as far as it is known."""
        return str(self.config.get("method") or (self.summary and self.summary["method"]) or "unknown method")

    @property
    def title(self) -> str:
        """Return the method's full name."""
        return method_title(self.method)

    @property
    def seed(self) -> int:
        """Return the run's seed; 0 if it is unknown."""
        return int(schema.whole(self.config.get("seed")) or 0)

    @property
    def planned(self) -> int:
        """Return the configured number of rounds, or the number of rounds done if that is unknown."""
        return schema.whole(self.config.get("rounds")) or self.done

    def total(self, name: Literal["up_bytes", "down_bytes"]) -> float | None:
        """Return the sum over all metrics, or the total in the summary if there are none; None if it is unknown."""
        if self.metrics:
            return sum(record[name] for record in self.metrics)
        return self.summary[name] if self.summary else None

    @property
    def done(self) -> int:
        """Return the last round in the metrics."""
        return max((record["round"] for record in self.metrics), default=0)

    @property
    def complete(self) -> bool:
        """Return whether the run has ended."""
        return self.summary is not None

    @property
    def final(self) -> list[FinalResult]:
        """Return every tested client's last result; that of the summary where the metrics end too early."""
        last = {found["client"]: found for record in self.metrics if (found := schema.final_result(record))}
        for found in self.summary["clients"] if self.summary else []:
            if found["client"] not in last or last[found["client"]]["round"] < found["round"]:
                last[found["client"]] = found
        return [last[k] for k in sorted(last)]

    def matrices(self, folder: str, round_number: int) -> dict[str, Matrix]:
        """Return the tensors of a round as float64, without those that have no row for each client."""
        path = round_file(self.path, folder, round_number)
        try:
            tensors = load_round(path)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            note = f"{folder}/{path.name} cannot be read ({_reason(error)}): that round is left out."
            self.notes += [note] if note not in self.notes else []
            return {}
        found = {name: tensor.double().numpy() for name, tensor in tensors.items() if not name.startswith("state.")}
        return {name: tensor for name, tensor in found.items() if tensor.ndim == 2 and len(tensor) == len(self.clients)}


def recorded_rounds(run: Path, folder: str) -> list[int]:
    """Return the rounds of which `mixing` or `traces` of a run directory holds a file, in order."""
    names = (path.stem.removeprefix("round-") for path in (run / folder).glob("round-*.safetensors"))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def round_file(run: Path, folder: str, round_number: int) -> Path:
    """Return the path of a round's file in `mixing` or `traces` of a run directory."""
    return run / folder / f"round-{round_number:04d}.safetensors"


def load_round(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file of `mixing` or `traces`; weights of an aggregation are the dense `matrix`.

    A run with `storage = disk` has only `rows` of the `clients` that took part, over the `members` that counted.
    """
    tensors = safetensors.torch.load_file(path)
    if path.parent.name == schema.MIXING and not tensors.keys() & {"matrix", "members"}:
        tensors["matrix"] = dense(weights_from(tensors))
    return tensors


def read_run(path: Path, strict: bool = False) -> RunFiles:
    """Return a run directory without its matrices; at a damaged file raise UserError if `strict`, else note it."""
    reader = RunReader(path, strict)
    config = reader.config_table()
    raw = reader.summary()
    clients = [schema.clean_client(client, index) for index, client in enumerate(reader.clients())]
    most = len(clients) or schema.whole(config.get("clients")) or schema.MOST_CLIENTS
    lines = reader.metrics()
    metrics = _clean_lines(reader, lines, most)
    summary = None if raw is None else schema.clean_summary(raw, most)
    domains = {result["client"]: result["domain"] for result in (summary["clients"] if summary else [])}
    domains |= {record["client"]: record["domain"] for record in metrics}
    for k in range(len(clients), 1 + max(domains, default=-1)):
        clients.append(schema.clean_client({"domain": domains.get(k, "")}, k))
    expected = summary and any(client["classes"] for client in clients)  # a coordinator knows no classes
    timing = reader.timing()
    analysis = reader.analysis("so there are no confusion matrices" if expected else "")
    environment = reader.read_json(schema.ENVIRONMENT, RESTORE, "so versions and machine are unknown")
    run = RunFiles(
        path=path,
        config={name: value for name, value in config.items() if name != "options"},
        options=as_record(config.get("options")),
        environment=as_record(environment),
        clients=clients,
        metrics=metrics,
        seconds={
            line["round"]: seconds
            for line in timing
            if schema.whole(line.get("round")) and (seconds := schema.number(line.get("seconds"))) is not None
        },
        summary=summary,
        confusion=analysis["confusion"] if isinstance(analysis.get("confusion"), list) else [],
        mu_layers=schema.words(analysis.get("mu_layers")),
        metric=schema.metric_of_tests(lines, as_record(raw).get("clients")),
        party=_read_party(path),
        notes=reader.notes,
    )
    run.notes += _notes_on(run)
    if not run.complete:
        done = f"Not finished: round {run.done} of {run.planned}." if run.done else "No round is done yet."
        run.notes.insert(0, done)
    return run


def _clean_lines(reader: RunReader, lines: list[Record], clients: int) -> list[MetricsLine]:
    """Return the metrics in order of rounds and clients; of several lines of one client and round the last."""
    cleaned = [schema.clean_metrics(line, clients) for line in lines]
    if bad := cleaned.count(None):
        what = f"{bad} line{'s' if bad > 1 else ''} without a valid round and client"
        if reader.strict:
            raise UserError(f"'{reader.path / schema.METRICS}' has {what}: {RESTORE}")
        reader.notes.append(f"{schema.METRICS}: {what} left out.")
    last = {(record["round"], record["client"]): record for record in cleaned if record is not None}
    return [last[key] for key in sorted(last)]


def _notes_on(run: RunFiles) -> list[str]:
    """Return notes on incomplete and diverged results."""
    notes = []
    if run.complete and 0 < run.done < run.planned:
        ends = f"{schema.METRICS} ends in round {run.done} of {run.planned}"
        notes.append(f"{ends}: the rest is missing from the curves.")
    if run.seconds and any(round_number not in run.seconds for round_number in range(1, run.done + 1)):
        notes.append(f"{schema.TIMING} lacks some rounds, so there are no times.")
    notes += [schema.inactivity_line(run.title)] if schema.inactive(run.summary) else []
    if lost := [record["client"] for record in run.final if record["diverged"]]:
        notes.append(divergence_line(lost))
    return notes


def check_folder(path: Path) -> None:
    """Raise UserError if the path is no folder."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise UserError(f"'{path}' {what}: name a run directory, or a folder of them.")


def find_runs(paths: list[Path]) -> list[Path]:
    """Return the run directories among and directly inside the given folders; of a party's kit, its run."""
    found: list[Path] = []
    for path in paths:
        check_folder(path)
        inside = [path] if is_run(path) else sorted(filter(is_run, path.iterdir()))
        if (path / schema.FEDERATION).is_file():
            inside = [path / schema.RUN]
            if not is_run(path / schema.RUN):
                raise UserError(f"'{path}' is the kit of a party that has not begun: there is nothing to show yet.")
        if not inside:
            raise UserError(f"'{path}' is not a run directory and holds none: there is no {schema.CONFIG}.")
        found += [run for run in inside if run.resolve() not in {other.resolve() for other in found}]
    return found


def is_run(path: Path) -> bool:
    """Return whether a folder looks like a run directory, damaged or not."""
    return path.is_dir() and any((path / name).is_file() for name in (schema.CONFIG, schema.METRICS, schema.SUMMARY))


def _parse_line(line: bytes, strict: bool) -> Record | None:
    """Return a line's record; None if it is damaged, in a strict reader also if it belongs to no round."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and not (strict and not isinstance(record.get("round"), int)) else None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).split("\n")[0]


def _read_party(path: Path) -> str:
    """Return the name of the party whose kit holds this run; empty if it is in no kit."""
    try:
        text = (path.resolve().parent / schema.FEDERATION).read_text(encoding="utf-8")
        return str(tomllib.loads(text).get("party", ""))
    except (OSError, ValueError):
        return ""
