"""A cell: one entry of one of the paper's tables or figures, run with one seed and kept as one file."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from factorized_fl.api import configure
from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.rundir import Record

RESULTS = Path("results/paper")
LAST = 5  # rounds of which a single client's last accuracy is the mean


@dataclass(frozen=True)
class Cell:
    """What is run: a preset with a method, a seed and single settings, under the names that a table gives it."""

    what: str  # the study it belongs to
    setting: str  # the column or block of the table
    method: str
    preset: str
    seed: int = 1
    variant: str = ""  # what is different from the method as it stands, in a word
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """The method, with its variant."""
        return f"{self.method}+{self.variant}" if self.variant else self.method

    @property
    def name(self) -> str:
        """Where the cell is kept under the folder of results, without a suffix."""
        setting = "" if self.setting == self.what else f"{self.setting}/"
        return f"{self.what}/{setting}{self.row}-seed{self.seed}"

    def path(self, results: Path) -> Path:
        """Its file."""
        return results / f"{self.name}.json"

    def config(self, chosen: Mapping[str, Any] | None = None) -> Config:
        """The complete configuration; `chosen` are options that were chosen on validation images."""
        settings = {**(chosen or {}), **self.settings, "seed": self.seed}
        return configure(self.preset, self.method, **settings)


@dataclass(frozen=True)
class Result:
    """A finished cell, as its file tells it."""

    record: Record

    @property
    def configuration(self) -> Record:
        """All options of the run."""
        return self.record["configuration"]

    def came_from(self, config: Config) -> bool:
        """Whether this was run with a configuration; an option that is newer than the result counts as its default."""
        try:
            return from_table(self.configuration) == config
        except UserError:  # an option that is no more
            return False

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.record["seed"]

    @property
    def domains(self) -> list[str]:
        """The domain of every client."""
        return self.record["clients"]["domain"]

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self.record["correct"])

    @cached_property
    def curve(self) -> list[list[float | None]]:
        """Accuracy of every client (inner) after every round (outer); nothing where a client was not tested."""
        totals = self.record["clients"]["scored"]
        return [
            [None if right is None else right / total for right, total in zip(row, totals, strict=True)]
            for row in self.record["correct"]
        ]

    def scores(self, round: int | None = None) -> list[float | None]:
        """Accuracy of every client after a round, by default the last; nothing where a client was not tested.

        Who trains alone has no others over whom its ups and downs cancel: its last accuracy is that of LAST rounds.
        """
        if round is None and len(self.curve[-1]) == 1:
            return [statistics.fmean(self.last_scores)]
        return self.curve[-1 if round is None else round - 1]

    @property
    def last_scores(self) -> list[float]:
        """A single client's accuracies after its last rounds."""
        return [score for row in self.curve[-LAST:] for score in row if score is not None]

    def accuracies(self, round: int | None = None) -> list[float]:
        """The scores of those that were tested."""
        return [score for score in self.scores(round) if score is not None]

    @property
    def device(self) -> str:
        """What it ran on."""
        return self.record["environment"]["device"]

    @property
    def seconds(self) -> float:
        """All of the time that the cell took."""
        return self.record["seconds"]["rounds"] + self.record["seconds"]["start"]


def read_result(path: Path) -> Result | None:
    """A finished cell, or nothing if it was not run."""
    return Result(read_record(path, "clients", "correct")) if path.exists() else None


def read_record(path: Path, *needed: str) -> Record:
    """What a file of the results holds."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if missing := sorted(set(needed) - set(record)):
            raise ValueError(f"it has no '{missing[0]}'")
        return record
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"The result '{path}' cannot be read ({error}): remove it to run this cell again.") from None


def write_result(path: Path, record: Record) -> None:
    """Keep a finished cell."""
    with plain_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (layout(record) + "\n").encode())


def as_record(config: Config) -> Record:
    """A configuration as JSON has it."""
    return json.loads(json.dumps(asdict(config)))


def layout(value: Any, indent: int = 0) -> str:
    """JSON that is small and compares well line by line: tables of numbers have a row a line."""
    flat = json.dumps(value)
    rows = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    if not (isinstance(value, dict) or rows) or len(flat) + indent < 100:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {layout(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + inner[1:] + "}"
    return "[\n" + ",\n".join(inner + layout(item, indent + 1) for item in value) + "\n" + inner[1:] + "]"
