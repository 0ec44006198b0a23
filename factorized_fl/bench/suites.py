"""The suites of `ffl bench` as data: their entries, the learning rates that are tried, and the runs that follow."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factorized_fl.api import configure
from factorized_fl.config import Config, read_table
from factorized_fl.core.errors import UserError, unknown
from factorized_fl.results.entries import Entry, parse_entry

Table = dict[str, Any]
Choice = Mapping[str, Any]  # settings of an entry: its learning rate `lr`, and options of its method
Choices = Mapping[str, Choice]  # what was chosen for each entry that was tuned
SEEDS = (1, 2, 3)
_BORROWING = {"oracle", "align"}  # entries with such a setting have the rate of the entry without it
_TUNING = {"seed": "a whole number", "rates": "a list of numbers", "methods": "a table", "options": "a table"}
_KEYS = {  # what a suite holds
    **dict.fromkeys(("about", "preset", "data", "rates_of"), "a text"),
    **dict.fromkeys(("entries", "groups"), "a list of texts"),
    **{"seeds": "a list of whole numbers", "settings": "a table", "tuning": "a table"},
}
_OF_FILE = dict.fromkeys(("groups", "suites", "settings", "tuning"), "a table")


@dataclass(frozen=True)
class Suite:
    """A scenario and the entries that run in it."""

    name: str
    preset: str
    entries: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""  # the folder inside the data folder that holds its images; empty: the data folder itself
    rates_of: str = ""  # the suite in which its learning rates are chosen
    tuning: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""  # the scenario in words

    @property
    def tuned_entries(self) -> list[str]:
        """Return the entries for which a learning rate is chosen; all other entries have the rate of `choice_of`."""
        return [entry for entry in self.entries if not _BORROWING & parse_entry(entry).own.keys()]

    def rates(self, entry: str) -> list[float]:
        """Return the learning rates to try for an entry."""
        return list(self.tuning.get("methods", {}).get(parse_entry(entry).method, self.tuning.get("rates", [])))

    def choices(self, entry: str) -> list[Choice]:
        """Return what is tried for an entry: each learning rate, and each set of options with the profile's rate."""
        options = self.tuning.get("options", {}).get(parse_entry(entry).method, [])
        return [*({"lr": rate} for rate in self.rates(entry)), *options]


@dataclass(frozen=True)
class Cell:
    """One run of a suite."""

    suite: str
    entry: str
    seed: int
    config: Config
    data: str = ""  # as in the suite
    options: str = ""  # that were chosen for it or are tried, as text

    @property
    def name(self) -> str:
        """Return the name of the cell's file without its ending: the entry, options, the learning rate and the seed."""
        options = f".{self.options}" if self.options else ""
        return f"{_plain(self.entry)}{options}.lr{self.config.lr:g}.seed{self.seed}"

    def path(self, results: Path) -> Path:
        """Return the file of the result."""
        return results / self.suite / f"{self.name}.json"


def _plain(entry: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-=," else "_" for letter in entry)


def read_suites(file: Path | None = None) -> dict[str, Suite]:
    """Return the suites of a file, of the package's own without one.

    Raise UserError for an unknown key or group, or a value of a wrong kind.
    """
    table = read_table(file) if file else tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8"))
    _check(table, _OF_FILE, "the file of suites")
    groups, suites = table.get("groups", {}), table.get("suites", {})
    _check(groups, dict.fromkeys(groups, "a list of texts"), "the groups")
    _check(suites, dict.fromkeys(suites, "a table"), "the suites")
    found = {}
    for name, given in suites.items():
        _check(given, _KEYS, f"the suite {name}")
        if "preset" not in given:
            raise UserError(f"The suite {name} has no preset: name one, as `ffl presets` lists them.")
        tuning = {**table.get("tuning", {}), **given.get("tuning", {})}
        _check(tuning, _TUNING, f"the tuning of {name}")
        for part, kind in (("methods", "a list of numbers"), ("options", "a list of tables")):
            _check(own := tuning.get(part, {}), dict.fromkeys(own, kind), f"tuning.{part} of {name}")
        if missing := [group for group in given.get("groups", []) if group not in groups]:
            raise unknown(f"group of the suite {name}", missing[0], groups)
        if given.get("rates_of", name) not in suites:
            raise unknown(f"suite whose rates {name} takes", given["rates_of"], suites)
        entries = [entry for group in given.get("groups", []) for entry in groups[group]] + given.get("entries", [])
        found[name] = Suite(
            name,
            given["preset"],
            tuple(dict.fromkeys(parse_entry(entry).name for entry in entries)),
            tuple(given.get("seeds", SEEDS)),
            {**table.get("settings", {}), **given.get("settings", {})},
            given.get("data", ""),
            given.get("rates_of", ""),
            tuning,
            given.get("about", ""),
        )
    return found


def _check(table: Table, kinds: Mapping[str, str], of: str) -> None:
    """Raise UserError unless all keys of a table are known and their values of these kinds."""
    if strange := [key for key in table if key not in kinds]:
        raise unknown(f"key of {of}", strange[0], kinds)
    for key, value in table.items():
        if not _fits(value, kinds[key]):
            raise UserError(f"{key} of {of} must be {kinds[key]}, not {value!r}.")


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("a list of "):
        one = f"a {kind.removeprefix('a list of ').removesuffix('s')}"
        return isinstance(value, list) and all(_fits(each, one) for each in value)
    types = {"a text": str, "a table": dict, "a whole number": int, "a number": int | float}
    return isinstance(value, types[kind]) and not isinstance(value, bool)


def make_cell(suite: Suite, entry: str, seed: int, choice: Choice | None = None) -> Cell:
    """Return one run of a suite, with the profile's learning rate unless one is given; raise UserError if impossible.

    Runs recalibrate; accuracy without recalibration is recorded beside.
    """
    parsed, choice = parse_entry(entry), choice or {}
    settings = {**suite.settings, "recalibrate": True, "seed": seed, **choice}
    config = configure(suite.preset, parsed.method, **parsed.settings(settings))
    return Cell(suite.name, parsed.name, seed, config, suite.data, _options_text(choice))


def _options_text(choice: Choice) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(choice.items()) if key != "lr")


def check_entries(suite: Suite, only: Sequence[str]) -> tuple[str, ...]:
    """Return the named entries, all of the suite without names; raise UserError for one that it does not have."""
    names = tuple(parse_entry(entry).name for entry in only)
    if strange := [name for name in names if name not in suite.entries]:
        raise unknown(f"entry of the suite {suite.name}", strange[0], suite.entries)
    return names or suite.entries


def cells_of(suite: Suite, choices: Choices, seeds: Sequence[int] = (), only: Sequence[str] = ()) -> list[Cell]:
    """Return the runs of a suite, seed by seed; `only` names entries. Raise UserError for a run that is impossible."""
    entries = check_entries(suite, only)
    return [
        make_cell(suite, entry, seed, choice_of(entry, choices)) for seed in seeds or suite.seeds for entry in entries
    ]


def tuning_cells(suite: Suite, only: Sequence[str] = ()) -> list[Cell]:
    """Return the runs in which learning rates are chosen; those with the chosen rate are also runs of the suite."""
    if suite.rates_of:
        raise UserError(f"The suite {suite.name} takes the rates of {suite.rates_of}: tune that one.")
    entries, seed = check_entries(suite, only), int(suite.tuning.get("seed", suite.seeds[0]))
    tuned = [entry for entry in entries if entry in suite.tuned_entries]
    return [make_cell(suite, entry, seed, choice) for entry in tuned for choice in suite.choices(entry)]


def choice_of(entry: str, choices: Choices) -> Choice:
    """Return what was chosen for an entry, without oracle and matched classes if it has any; empty if nothing was."""
    parsed = parse_entry(entry)
    without = Entry(parsed.method, {key: value for key, value in parsed.own.items() if key not in _BORROWING})
    return choices.get(without.name, {})


def find_cell(suite: Suite, name: str) -> Cell:
    """Return the run of a suite whose file has this name; raise UserError if there is no such run."""
    front, _, seed = name.rpartition(".seed")
    front, _, rate = front.rpartition(".lr")
    for entry in suite.entries:
        for choice in [{}, *suite.choices(entry)]:
            options = {key: value for key, value in choice.items() if key != "lr"}
            if front == ".".join(filter(None, (_plain(entry), _options_text(options)))):
                try:
                    return make_cell(suite, entry, int(seed), {**options, "lr": float(rate)})
                except ValueError:
                    break
    raise UserError(
        f"The suite {suite.name} has no run '{name}': names are ENTRY.lrRATE.seedN, as `ffl bench {suite.name} --list`."
    )
