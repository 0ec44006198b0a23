"""The runs of a study, read from files as `ffl bench` and `python -m studies.mini run` write them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from factorized_fl.bench.cells import read_cell, tests_of
from factorized_fl.config import Config, from_table, resolve
from factorized_fl.presets import find_preset
from factorized_fl.results.control import control_of
from factorized_fl.results.effect import Tested
from factorized_fl.results.rundir import Record

# A row of a table: its method, whether clients aggregate with themselves alone, and the oracle.
Row = tuple[str, bool, str]
KIND = "recalibrated"  # the statistics by which miniatures are compared


@dataclass(frozen=True)
class Run:
    """One complete run."""

    record: Record
    config: Config

    @property
    def row(self) -> Row:
        """Return the row that the run belongs to."""
        return self.config.method, self.config.control, self.config.oracle

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return self.config.seed

    @property
    def canonical(self) -> Config:
        """Return the configuration; of a control the one that it shares with the controls of related methods."""
        return control_of(replace(self.config, control=False)) if self.config.control else self.config

    @property
    def tests(self) -> Tested:
        """Return the final tests."""
        return tests_of(self.record)

    @property
    def validation(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of right and of all validation images by client."""
        scores = {one["client"]: one["scores"][KIND]["validation"] for one in self.record["summary"]["clients"]}
        return {client: (score["correct"], score["total"]) for client, score in scores.items()}

    @property
    def domains(self) -> dict[int, str]:
        """Return the domain of each client."""
        return {one["client"]: one["domain"] for one in self.record["summary"]["clients"]}

    def mean(self, kind: str, part: str) -> float:
        """Return the mean accuracy over clients with one kind of statistics on one part of the images."""
        return float(self.record["summary"]["score_means"][kind][part])

    def origin(self) -> Record:
        """Return what was run: the settings in which it differs from the preset without a profile, and where."""
        usual = flat(resolve(find_preset(self.config.preset), self.config.method, {"profile": "none"}))
        usual["profile"] = self.config.profile
        machine = self.record["machine"]
        return {
            "row": row_name(self.row),
            "seed": self.seed,
            "commit": self.record["commit"],
            "machine": {name: machine.get(name) for name in ("platform", "device", "threads", "python", "packages")},
            "settings": {k: v for k, v in flat(self.config).items() if usual[k] != v and k != "seed"},
            "seconds": self.record["seconds"],
        }


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Return the runs in some folders that score by recalibrated statistics; raise UserError for a damaged file."""
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            record = read_cell(path)
            run = Run(record, from_table(record["configuration"]))
            found += [run] if run.config.recalibrate else []
    return found


def row_name(row: Row) -> str:
    """Return a name for a row in files."""
    method, control, oracle = row
    return method + ("+control" if control else "") + (f"+{oracle}" if oracle != "none" else "")


def flat(config: Config) -> dict[str, Any]:
    """Return all settings and options in one dictionary."""
    return {**{k: v for k, v in vars(config).items() if k != "options"}, **config.options}
