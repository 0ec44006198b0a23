"""A cell: one entry of one of the paper's tables or figures, run with one seed and kept as one file."""

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from factorized_fl.api import configure
from factorized_fl.config import Config
from factorized_fl.methods import METHODS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]  # of the source tree that this file belongs to
RESULTS = ROOT / "results" / "paper"
Key = tuple[str, str, str]  # study, setting and row


@dataclass(frozen=True)
class Cell:
    """What is run: a preset with a method, a seed and settings, under the names that a table gives it."""

    study: str
    setting: str  # the column or block of the table
    method: str
    preset: str
    seed: int = 1
    variant: str = ""  # a short name of what is different from the method as it stands
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """The method, with its variant."""
        return f"{self.method}+{self.variant}" if self.variant else self.method

    @property
    def key(self) -> Key:
        """The study, the setting and the row, which all seeds have in common."""
        return self.study, self.setting, self.row

    @property
    def name(self) -> str:
        """Where the cell is kept under the folder of results, without a suffix."""
        setting = "" if self.setting == self.study else f"{self.setting}/"
        return f"{self.study}/{setting}{self.row}-seed{self.seed}"

    def path(self, results: Path) -> Path:
        """Return the file that holds its result."""
        return results / f"{self.name}.json"

    def config(self, chosen: Mapping[str, Any] | None = None) -> Config:
        """Return the complete configuration; `chosen` are options that were chosen on validation images."""
        settings = {**(chosen or {}), **self.settings, "seed": self.seed}
        return configure(self.preset, self.method, **settings)


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return one of the data files beside this module."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def named_list(value: Any) -> Any:
    """Return the list of that name in the data files, or the value itself if it is no such name."""
    lists = read_data("grid.toml")["lists"] | read_data("claims.toml")["lists"]
    return lists.get(value, value) if isinstance(value, str) else value


def expand(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one table of fields per combination of a block's `each` lists, the first of which varies slowest."""
    axes = [
        [item if isinstance(item, dict) else {name: item} for item in named_list(items)]
        for name, items in block.get("each", {}).items()
    ]
    for items in itertools.product(*axes):
        fields = {name: value for name, value in block.items() if name != "each"}
        settings = dict(fields.get("settings", {}))
        for item in items:
            settings |= item.get("settings", {})
            fields |= item
        fields["settings"] = settings
        if fields.get("setting") in fields.get("where", [fields.get("setting")]):
            yield fields


def title(row: str) -> str:
    """Return a row's name: the method's title and, in brackets, what is different about it."""
    method, _, variant = row.partition("+")
    name = METHODS[method].title if method in METHODS else read_data("grid.toml")["titles"].get(method, method)
    return f"{name} ({variant_title(row)})" if variant else name


def variant_title(row: str) -> str:
    """Return only what is different about a row."""
    changes = row.partition("+")[2].replace(",", "+").split("+")
    return ", ".join(read_data("grid.toml")["titles"].get(change, change) for change in changes)
