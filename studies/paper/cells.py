"""Cells and the data files: a cell is one entry of a table or figure, run with one seed and kept as one file."""

import itertools
import string
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
DOMAINS = "cifar100-domains"
# How long a single client trains, and after which round that is: None for the last. The paper states 20 epochs.
ALL_EPOCHS, FEW_EPOCHS = "250 epochs", "20 epochs"
ROUND_AFTER: dict[str, int | None] = {ALL_EPOCHS: None, FEW_EPOCHS: 4}
Key = tuple[str, str, str]  # study, setting and row


@dataclass(frozen=True)
class Cell:
    """What is run: a preset with a method, a seed and settings, under the names that a table gives it."""

    study: str
    setting: str  # the column or block of the table
    method: str
    preset: str
    seed: int = 1
    variant: str = ""  # a short name of the difference from the method as printed
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
        """The path of the cell below the folder of results, without a suffix."""
        setting = "" if self.setting == self.study else f"{self.setting}/"
        return f"{self.study}/{setting}{self.row}-seed{self.seed}"

    @property
    def about(self) -> Key:
        """The study, setting and method whose published number this cell is compared with."""
        if self.study not in ("deviations", "similarity"):
            return self.study, self.setting, self.method
        if self.preset.startswith(DOMAINS):
            return "domains", "domains", self.method
        study = "label-cifar10" if self.setting in read_data("grid.toml")["presets"] else "architectures"
        study = "label-svhn" if self.setting.startswith("svhn-") else study
        return study, self.setting.removeprefix("svhn-"), self.method

    def path(self, results: Path) -> Path:
        """Return the file that holds its result."""
        return results / f"{self.name}.json"

    def config(self, chosen: Mapping[str, Any] | None = None) -> Config:
        """Return the complete configuration; `chosen` are options that were chosen on validation images."""
        measured = read_data("grid.toml")["measured"].get(self.method, {})
        settings = {**measured, **(chosen or {}), **self.settings, "seed": self.seed}
        return configure(self.preset, self.method, **settings)


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return one of the data files beside this module."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def named_list(value: Any) -> Any:
    """Return the list of that name in grid.toml, or the value itself if it is no such name."""
    return read_data("grid.toml")["lists"].get(value, value) if isinstance(value, str) else value


def as_key(name: str) -> Key:
    """Return the key of "study/setting/row"."""
    study, setting, row = name.split("/")
    return study, setting, row


def expand(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one table of fields per combination of a block's `each` lists, the first of which varies slowest.

    References of fields to each other are filled in, but not in `form`; `{name!t}` is a title.
    """
    axes = [
        [item if isinstance(item, dict) else {name: item} for item in named_list(items)]
        for name, items in block.get("each", {}).items()
    ]
    presets = read_data("grid.toml")["presets"]
    for items in itertools.product(*axes):
        fields = {name: value for name, value in block.items() if name != "each"}
        settings = dict(fields.get("settings", {}))
        for item in items:
            settings |= item.get("settings", {})
            fields |= item
        setting = fields.get("setting", "")
        preset = fields.get("preset", "{preset}").replace("{preset}", presets.get(setting, ""))
        fields |= {"settings": settings, "preset": preset}
        if setting in fields.get("where", [setting]):
            yield {name: value if name == "form" else _fill_in(value, fields) for name, value in fields.items()}


class _Titles(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return title(value) if conversion == "t" else super().convert_field(value, conversion)


def _fill_in(value: Any, fields: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_fill_in(item, fields) for item in value]
    return _Titles().format(value, **fields) if isinstance(value, str) else value


def published(path: str) -> Any:
    """Return what published.toml has at a path such as "domains/fedavg/average"; None if there is nothing."""
    value: Any = read_data("published.toml")
    for name in path.split("/"):
        value = value.get(name, {})
    return value or None


def published_mean(study: str, setting: str, method: str) -> list[float] | None:
    """Return the published mean of a cell, with its spread where one is given; for the domains their average."""
    if study == "architectures":
        return [published(f"{study}/{setting}/{method}")]
    return published(f"{study}/{method}/{'average' if study == 'domains' else setting}")


def title(row: str, variant_only: bool = False) -> str:
    """Return a row's name: the method's title and, in brackets, its variant; or only the variant."""
    titles = read_data("grid.toml")["titles"]
    method, _, variant = row.partition("+")
    changes = ", ".join(titles.get(change, change) for change in variant.replace(",", "+").split("+"))
    name = METHODS[method].card.title if method in METHODS else titles.get(method, method)
    return changes if variant_only else f"{name} ({changes})" if variant else name
