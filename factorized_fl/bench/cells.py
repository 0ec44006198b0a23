"""The runs of a benchmark suite: one result file for each, in this process or in several."""

import json
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from factorized_fl.api import run
from factorized_fl.bench.suites import Cell, Suite, find_cell
from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.effect import Tested
from factorized_fl.results.right import pack_graded, read_graded, unpack_graded
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import KINDS, clean_summary, numbered_from_0
from factorized_fl.simulate.side_by_side import run_side_by_side

Record = dict[str, Any]
_MACHINE = ("platform", "device", "threads", "python", "engine", "convolutions", "date")
_PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class Place:
    """Where cells run and what they leave there."""

    results: Path
    work: Path  # run directories; each is removed when its result file is written
    data: Path | None = None
    device: str = "auto"
    threads: int = 0  # of each process; 0: PyTorch's own number
    keep: bool = False  # run directories


def run_cell(suite: Suite, name: str, place: Place) -> Record:
    """Run the cell whose file has this name, or continue it from its checkpoint; write its file and return its record.

    A cell that has a file is not run again. Raise UserError if there is no such cell or its run is impossible.
    """
    cell = find_cell(suite, name)
    return run_or_read(cell, place)


def run_or_read(cell: Cell, place: Place) -> Record:
    """Return the record in a cell's file, after running it if there is no file."""
    path = cell.path(place.results)
    if path.exists():
        return read_cell(path, cell.config)
    if place.threads:
        torch.set_num_threads(place.threads)
    data = place.data / cell.data if place.data and cell.data else place.data
    work = place.work / cell.suite / cell.name
    run(cell.config, work, data=data, resume=True, device=place.device, progress=False)
    with plain_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(work)
    record = record_of(cell, directory) | {"right": pack_graded(read_graded(work, []), path.parent)}
    write_atomically(path, as_text(record).encode())
    if not place.keep:
        shutil.rmtree(work, ignore_errors=True)
    return read_cell(path, cell.config)


def record_of(cell: Cell, directory: RunDirectory) -> Record:
    """Return what is kept of a complete run, but for the graded images."""
    summary = directory.summary()
    environment = directory.read_json("environment.json", "run it again", fits=lambda found: isinstance(found, dict))
    assert summary is not None
    packages = environment.get("packages", {})
    return {
        "suite": cell.suite,
        "entry": cell.entry,
        "seed": cell.seed,
        "commit": environment.get("commit"),
        "machine": {name: environment[name] for name in _MACHINE if name in environment}
        | {"packages": {name: packages[name] for name in _PACKAGES if name in packages}},
        "seconds": round(sum(line["seconds"] for line in directory.timing()), 1),
        "up_bytes": summary["up_bytes"],
        "down_bytes": summary["down_bytes"],
        "activated": summary.get("activated"),
        **{name: summary[name] for name in ("matches",) if name in summary},
        "configuration": json.loads(json.dumps(asdict(cell.config))),
        "clients": [_compact(client) for client in summary["clients"]],
    }


def _compact(client: Record) -> Record:
    """Return the domain, the final loss, and right and all images of a client by statistics and part of the images."""
    counts = {
        kind: {part: [found["correct"], found["total"]] for part, found in client["scores"][kind].items()}
        for kind in KINDS
    }
    return {"domain": client["domain"], **counts, "loss": client["loss"] and round(client["loss"], 4)}


def _summary_of(record: Record) -> Record:
    """Return the summary of a run as its run directory had it, from what is kept of it."""
    rounds, clients = record["configuration"]["rounds"], []
    for k, kept in enumerate(record["clients"]):
        scores = {
            kind: {part: _score(*counts) for part, counts in kept[kind].items()} for kind in KINDS if kind in kept
        }
        own = scores["recalibrated" if record["configuration"]["recalibrate"] else "plain"]["test"]
        client = {"client": f"client {k + 1}", "domain": kept["domain"], "round": rounds, "loss": kept["loss"]}
        clients.append({**client, **own, "scores": scores})
    parts = {part for client in clients for part in client["scores"]["plain"]}
    means = {
        kind: {
            part: statistics.fmean(one["scores"][kind][part]["accuracy"] for one in clients) for part in sorted(parts)
        }
        for kind in KINDS
    }
    names = ("up_bytes", "down_bytes", "activated", "matches")
    totals: Record = {name: record[name] for name in names if name in record}
    return {"method": record["configuration"]["method"], "clients": clients, "score_means": means, **totals}


def _score(correct: int, total: int) -> Record:
    return {"accuracy": correct / total, "correct": correct, "total": total}


def as_text(record: Record) -> str:
    """Return a record as JSON with a line for each entry and each client, in the order of the scenario."""
    long = ("clients", "right")
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items() if key not in long]
    for key in long:
        inside = ",\n".join(f"  {json.dumps(each)}" for each in record[key])
        lines.append(f' "{key}": [\n{inside}\n ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def tests_of(record: Record, kind: str = "recalibrated") -> Tested:  # noqa: PT028
    """Return the final tests of a result; without the right images for statistics that the run does not test with.

    A run on pooled images has one client for each domain, which stands for all clients of the domain.
    """
    config, found = record["configuration"], record["summary"]["clients"]
    own = kind == ("recalibrated" if config["recalibrate"] else "plain")
    scored = [{**one, **(one.get("scores", {}).get(kind, {}).get("test") or {})} for one in found]
    final = clean_summary({"clients": scored})["clients"]
    right = record.get("right", {}) if own else {}
    if config["oracle"] == "centralised":
        share, rest = divmod(config["clients"], len(final))
        counts = config["clients_per_domain"] or [share + (at < rest) for at in range(len(final))]
        spread = [one for one, count in zip(final, counts, strict=True) for _ in range(count)]
        final = [{**one, "client": k} for k, one in enumerate(spread)]
        right = {k: right[one["client"]] for k, one in enumerate(spread) if one["client"] in right}
    return Tested(record["seed"], final, right)


def mean_accuracy(record: Record, kind: str = "recalibrated") -> float:
    """Return the mean test accuracy over the clients of a record."""
    return statistics.fmean(one["accuracy"] for one in tests_of(record, kind).final)


def run_cells(cells: Sequence[Cell], place: Place, jobs: int = 1) -> Iterator[tuple[Cell, str]]:
    """Run the cells without a file in `jobs` processes; yield each with "was done", "done" or its error's sentence.

    Raise UserError if a file is from another configuration. An interrupted run continues from its checkpoint.
    """
    missing = []
    for cell in cells:
        if cell.path(place.results).exists():
            read_cell(cell.path(place.results), cell.config)
            yield cell, "was done"
        else:
            missing.append(cell)
    if jobs == 1 or len(missing) < 2:
        for cell in missing:
            yield cell, _try(cell, place)
        return
    work = [partial(_try, cell, place) for cell in missing]
    for index, state in run_side_by_side(work, jobs, threads=place.threads):
        yield missing[index], state


def _try(cell: Cell, place: Place) -> str:
    try:
        run_or_read(cell, place)
    except UserError as error:
        return str(error)
    except Exception as error:  # of one run, which must not end the others
        return f"stopped by {type(error).__name__}: {error}"
    return "done"


def expected_seconds(cells: Sequence[Cell], results: Path, jobs: int = 1) -> float | None:
    """Return the expected seconds of the cells without a file, from what cells of the suites took; None if unknown.

    A cell takes as long as the mean of its entry in its suite, or else of its suite.
    """
    of_entry: dict[tuple[str, str], list[float]] = {}
    of_suite: dict[str, list[float]] = {}
    for suite in {cell.suite for cell in cells}:
        for path in (results / suite).glob("*.json"):
            record = read_cell(path)
            of_entry.setdefault((suite, record["entry"]), []).append(record["seconds"])
            of_suite.setdefault(suite, []).append(record["seconds"])
    total = 0.0
    for cell in cells:
        if not cell.path(results).exists():
            known = of_entry.get((cell.suite, cell.entry)) or of_suite.get(cell.suite)
            if known is None:
                return None
            total += statistics.fmean(known)
    return total / jobs


def read_cell(path: Path, config: Config | None = None) -> Record:
    """Return the result in a file with the run's `summary` and, in `right`, graded images by client, counted from 0.

    Raise UserError if it cannot be read or, given a configuration, is of another one.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = config is None or from_table(record["configuration"]) == config
        summary = record["summary"] if "summary" in record else _summary_of(record)
        clients = [numbered_from_0(client) for client in summary["clients"]]
        right = unpack_graded(record.get("right", []), path.parent)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"The result '{path}' cannot be read ({error}): remove it to run it again.") from None
    if not same:
        raise UserError(f"The result '{path}' is of another configuration: remove it, or choose another --out.")
    return {**record, "summary": {**summary, "clients": clients}, "right": right}
