"""The entries of a comparison: methods, each with settings of its own if it has any, as in factorized-fl:tau=0.3."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from factorized_fl.config import Config, flat_name
from factorized_fl.core.errors import UserError
from factorized_fl.core.toml_text import parse_setting, to_toml_value
from factorized_fl.methods import find_method
from factorized_fl.results.comparison import run_folder
from factorized_fl.results.control import control_of
from factorized_fl.results.effect import CONTROL
from factorized_fl.results.references import DATA_SETTINGS

_NOT_OF_ONE = ("seed", "method", "preset")  # settings that a comparison has for all of its entries


@dataclass(frozen=True)
class Entry:
    """A method and the settings in which this entry differs from other entries of the method."""

    method: str
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the entry as it can be given to a comparison; equal settings give equal names."""
        texts = {key: value if isinstance(value, str) else to_toml_value(value) for key, value in self.own.items()}
        return self.method + "".join(f":{key}={texts[key]}" for key in sorted(texts))

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the given settings that concern this entry, with its own in place of equal ones.

        A setting METHOD.NAME is only for that method, and takes precedence over NAME.
        """
        named = {flat_name(key): value for key, value in given.items()}
        fitting = {key: value for key, value in named.items() if key.rpartition(".")[0] in ("", self.method)}
        return fitting | {f"{self.method}.{key}": value for key, value in self.own.items()}


def parse_entry(text: str) -> Entry:
    """Return the entry that a text like factorized-fl:tau=0.3:epsilon=5 stands for; raise UserError for another."""
    method, *settings = text.split(":")
    pairs = [(flat_name(name), value) for name, value in map(parse_setting, settings)]
    own = dict(pairs)
    if len(own) < len(pairs):
        raise UserError(f"'{text}' gives a setting twice: give each once.")
    _refuse_settings_of_all(own, text)
    return Entry(method.strip(), own)


def check_settings(given: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Raise UserError for a setting METHOD.NAME whose method is not compared, or that belongs to no method."""
    for key in given:
        method, _, name = flat_name(key).rpartition(".")
        if method and method not in {entry.method for entry in entries}:
            find_method(method)  # names similar methods where there is none of this name
            raise UserError(f"The setting '{key}' is for {method}, which is not compared: add it to --methods.")
        if method:
            _refuse_settings_of_all([name], key)


def _refuse_settings_of_all(names: Sequence[str] | Mapping[str, Any], text: str) -> None:
    if wrong := [name for name in _NOT_OF_ONE if name in names]:
        raise UserError(f"'{text}' sets the {wrong[0]}, which all methods of a comparison have in common.")


def check_configs(configs: Mapping[tuple[str, int], Config]) -> None:
    """Raise UserError if two entries are one configuration, or differ in the clients' images.

    The keys are names of entries with seeds.
    """
    of_seed: dict[int, list[tuple[str, Config]]] = {}
    for (name, seed), config in configs.items():
        for other, before in of_seed.setdefault(seed, []):
            if config == before:
                raise UserError(f"'{other}' and '{name}' are the same configuration: compare one of them.")
            if wrong := [key for key in DATA_SETTINGS if getattr(config, key) != getattr(before, key)]:
                raise UserError(
                    f"'{other}' and '{name}' differ in {wrong[0]}, so their clients are not the same: "
                    f"give {wrong[0]} to all, as in --set {wrong[0]}=..."
                )
        of_seed[seed].append((name, config))


def split_entries(text: str) -> list[str]:
    """Return the parts of a text that separates them by commas; commas in square brackets separate nothing."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


@dataclass
class PlannedRun:
    """A run of a comparison: its folder, the entries whose run it is, and the entries whose control it is."""

    config: Config
    folder: str
    entries: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)


def plan_runs(configs: Mapping[tuple[str, int], Config], control: bool = True) -> list[PlannedRun]:
    """Return the runs of a comparison, each followed by its control if no earlier run is that control.

    The keys are names of entries with seeds. A control is named after the method that runs, with those of the entry's
    own settings that concern it; if that name is taken by another configuration, after the entry.
    """
    plan = [PlannedRun(config, run_folder(name, seed), [name]) for (name, seed), config in configs.items()]
    if not control:
        return plan
    ordered = list[PlannedRun]()
    for planned in plan:
        ordered.append(planned)
        wanted = control_of(planned.config)
        if wanted == planned.config:
            continue
        found = next((other for other in (*plan, *ordered) if other.config == wanted), None)
        if found is None:
            entry = parse_entry(planned.entries[0])
            own = {key: value for key, value in entry.own.items() if key in {*vars(wanted), *wanted.options}}
            names = (Entry(wanted.method, own).name, entry.name)
            folders = [run_folder(f"{name}-{CONTROL}", wanted.seed) for name in names]
            taken = {other.folder for other in (*plan, *ordered)}
            found = PlannedRun(wanted, next((folder for folder in folders if folder not in taken), folders[-1]))
            ordered.append(found)
        found.controls += planned.entries
    return ordered
