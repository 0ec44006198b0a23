"""The runs of a benchmark suite: what is missing is run, in several processes, and kept as one file for each run."""

import json
import multiprocessing
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from factorized_fl.api import configure, run
from factorized_fl.config import Config, from_table, read_table
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.effect import Tested
from factorized_fl.results.entries import parse_entry
from factorized_fl.results.right import pack_graded, read_graded, unpack_graded
from factorized_fl.results.schema import clean_summary, numbered_from_0, numbered_from_1

Record = dict[str, Any]
SEEDS = (1, 2, 3)
_KEYS = ("preset", "entries", "groups", "controls", "recalibrate", "seeds", "settings")


@dataclass(frozen=True)
class Cell:
    """One run of a suite."""

    suite: str
    entry: str
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """Return the file's name without its ending: the entry, whether it recalibrates or is a control, the seed."""
        plain = "".join(letter if letter.isalnum() or letter in "-=.," else "_" for letter in self.entry)
        marks = [
            word for word, on in (("recalibrated", self.config.recalibrate), ("control", self.config.control)) if on
        ]
        return ".".join([plain, *marks, f"seed{self.seed}"])

    def path(self, results: Path) -> Path:
        """Return the file of the result."""
        return results / self.suite / f"{self.name}.json"


def read_suites(file: Path | None = None) -> dict[str, Record]:
    """Return the suites of a file, of the package's own without one; groups are written out."""
    table = read_table(file) if file else tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8"))
    groups, suites = table.get("groups", {}), table.get("suites", {})
    for name, suite in suites.items():
        if strange := [key for key in suite if key not in _KEYS]:
            raise unknown(f"key of the suite {name}", strange[0], _KEYS)
        if missing := [group for group in suite.get("groups", []) if group not in groups]:
            raise unknown(f"group of the suite {name}", missing[0], groups)
        entries = [entry for group in suite.get("groups", []) for entry in groups[group]]
        suites[name] = {**suite, "entries": list(dict.fromkeys([*entries, *suite.get("entries", [])]))}
    return dict(suites)


def cells_of(name: str, suite: Record, seeds: Sequence[int] = (), only: Sequence[str] = ()) -> list[Cell]:
    """Return the runs of a suite, seed by seed; `only` names entries. Raise UserError for a run that is impossible."""
    if strange := [entry for entry in only if entry not in suite["entries"]]:
        raise unknown(f"entry of the suite {name}", strange[0], suite["entries"])
    cells = []
    for seed in seeds or suite.get("seeds", SEEDS):
        for text in only or suite["entries"]:
            entry = parse_entry(text)
            for recalibrate in suite.get("recalibrate", [True]):
                for control in (False, True) if text in suite.get("controls", []) else (False,):
                    settings = {
                        **suite.get("settings", {}),
                        "recalibrate": recalibrate,
                        "control": control,
                        "seed": seed,
                    }
                    config = configure(suite["preset"], entry.method, **entry.settings(settings))
                    cells.append(Cell(name, entry.name, seed, config))
    return cells


def run_cells(
    cells: Sequence[Cell], results: Path, work: Path, *, data: Path | None = None, jobs: int = 1
) -> Iterator[tuple[Cell, str]]:
    """Run the cells without a file in `jobs` processes; yield each with "was done", "done" or its error's sentence.

    Raise UserError if a file is from another configuration. An interrupted run continues from its checkpoint.
    """
    missing = []
    for cell in cells:
        if cell.path(results).exists():
            read_cell(cell.path(results), cell.config)
            yield cell, "was done"
        else:
            missing.append(cell)
    if jobs == 1 or len(missing) < 2:
        for cell in missing:
            yield cell, _run_cell(cell, results, work, data)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_run_cell, cell, results, work, data): cell for cell in missing}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _run_cell(cell: Cell, results: Path, work: Path, data: Path | None) -> str:
    """Run one cell and write its file; return "done", or the sentence of the error that prevents it."""
    try:
        directory = run(cell.config, work / cell.suite / cell.name, data=data, resume=True)
        summary = directory.summary()
        environment = directory.read_json(
            "environment.json", "run it again", fits=lambda found: isinstance(found, dict)
        )
    except UserError as error:
        return str(error)
    assert summary is not None
    path = cell.path(results)
    with plain_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "suite": cell.suite,
        "entry": cell.entry,
        "seed": cell.seed,
        "commit": environment.get("commit"),
        "machine": {name: value for name, value in environment.items() if name != "commit"},
        "configuration": json.loads(json.dumps(asdict(cell.config))),
        "summary": summary | {"clients": [numbered_from_1(client) for client in summary["clients"]]},
        "right": pack_graded(read_graded(directory.path, []), path.parent),
        "domains": [client["domain"] for client in directory.clients()],
        "seconds": round(sum(line["seconds"] for line in directory.timing()), 1),
    }
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    return "done"


def read_cell(path: Path, config: Config | None = None) -> Record:
    """Return the result in a file, with clients counted from 0 and unpacked bits in `right`.

    Raise UserError if it cannot be read or, given a configuration, is of another one.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = config is None or from_table(record["configuration"]) == config
        clients = [numbered_from_0(client) for client in record["summary"]["clients"]]
        right = unpack_graded(record.get("right", []), path.parent)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"The result '{path}' cannot be read ({error}): remove it to run it again.") from None
    if not same:
        raise UserError(f"The result '{path}' is of another configuration: remove it, or choose another --out.")
    return {**record, "summary": {**record["summary"], "clients": clients}, "right": right}


def tests_of(record: Record) -> Tested:
    """Return the final tests of a result.

    A run on pooled images has one client for each domain, which stands for all clients of the domain.
    """
    final, right = clean_summary(record["summary"])["clients"], record.get("right", {})
    config = record["configuration"]
    if config["oracle"] == "centralised":
        share, rest = divmod(config["clients"], len(final))
        counts = config["clients_per_domain"] or [share + (at < rest) for at in range(len(final))]
        spread = [one for one, count in zip(final, counts, strict=True) for _ in range(count)]
        final = [{**one, "client": k} for k, one in enumerate(spread)]
        right = {k: right[one["client"]] for k, one in enumerate(spread) if one["client"] in right}
    return Tested(record["seed"], final, right)
