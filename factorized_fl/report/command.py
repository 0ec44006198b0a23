"""The command that repeats a run, from its configuration."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from factorized_fl.config import Config, from_table, resolve, upgrade
from factorized_fl.core.errors import UserError
from factorized_fl.core.toml_text import parse_setting, to_toml_value
from factorized_fl.data.clients import OWN
from factorized_fl.methods import INSTALLED, METHODS
from factorized_fl.presets import PRESETS, find_preset
from factorized_fl.results.reading import RunFiles

_STAND_IN = "stand-alone"  # an installed method in place of one that is not loaded


def command_of(
    table: Mapping[str, Any], method: str | None = None, file: str = "config.toml", control: bool = False
) -> str | None:
    """Return `ffl run ...` for a parsed config.toml or the same scenario with another method; None if it is invalid.

    With `control` it is the command of the run's control.
    """
    try:
        return shlex.join([*_words(table, method, file), *(["--set", "control=true"] if control else [])])
    except (UserError, TypeError):  # a damaged file may hold a date, which no setting can be
        return None


def _words(table: Mapping[str, Any], method: str | None, file: str) -> list[str]:
    own = table.get("method")
    unloaded = method is None and isinstance(own, str) and own not in METHODS
    other = _STAND_IN if unloaded else method  # settings other than options can be checked without the method
    config = from_table({**table, "method": other, "options": {}} if other else table)
    name = str(own) if unloaded else config.method
    words = ["ffl", *([] if name in INSTALLED else ["--load", "FILE.py"]), "run"]
    if config.dataset == OWN:
        raise UserError("A run with data from Python cannot be repeated by a command.")
    if config.preset in PRESETS:
        given = resolve(find_preset(config.preset), config.method)
        words += [config.preset, "--method", name, *_settings(_of_run(config), _of_run(given))]
        # The defaults of a method that is not loaded are unknown, so all its options are set.
        words += _settings(table.get("options", {}), {}) if unloaded else _settings(config.options, given.options)
    else:
        words += [file, *(["--method", method] if method else [])]
    return [*words, *(["--data", "FOLDER"] if config.dataset == "folder" else [])]


def comparison_command(runs: Sequence[RunFiles]) -> str | None:
    """Return the `ffl compare ...` of runs of one preset; None where such a command cannot repeat them.

    Settings of all runs are given with --set, those of some runs behind the name of their method.
    """
    try:
        configs = [from_table(upgrade({**run.config, "options": run.options})) for run in runs]
    except (UserError, TypeError):
        return None
    preset = configs[0].preset
    if preset not in PRESETS or not INSTALLED.issuperset(config.method for config in configs):
        return None
    entries = dict[tuple[str, tuple[str, ...]], None]()
    for config in configs:
        if config.preset != preset:
            return None
        given = resolve(find_preset(preset), config.method)
        own, theirs = _of_run(config), _of_run(given)
        words = _settings(own | {"seed": theirs["seed"]}, theirs) + _settings(config.options, given.options)
        entries[config.method, tuple(words[1::2])] = None
    common = [text for text in next(iter(entries))[1] if all(text in texts for _, texts in entries)]
    names = [":".join([method, *(text for text in texts if text not in common)]) for method, texts in entries]
    if any(
        ":" in text or "," in text
        for name, (_, texts) in zip(names, entries, strict=True)
        for text in texts
        if text not in common
    ):
        return None  # these separate settings and methods
    seeds = ",".join(map(str, dict.fromkeys(config.seed for config in configs)))
    words = ["ffl", "compare", preset, "--methods", ",".join(names), "--seeds", seeds]
    return shlex.join([*words, *(word for text in common for word in ("--set", text))])


def _of_run(config: Config) -> dict[str, Any]:
    """Return the settings besides the method and its options."""
    return {name: value for name, value in vars(config).items() if name not in ("preset", "method", "options")}


def _settings(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return --set key=value for every value that differs, without quotes where it is parsed as the same word."""
    words = []
    for name, value in wanted.items():
        if name not in given or value != given[name]:
            plain = f"{name}={value}"
            same = isinstance(value, str) and parse_setting(plain) == (name, value)
            words += ["--set", plain if same else f"{name}={to_toml_value(value)}"]
    return words
