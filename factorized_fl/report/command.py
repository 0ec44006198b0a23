"""The command that makes a run again, from its configuration."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from factorized_fl.config import Config, from_table, parse_setting, resolve, to_toml_value
from factorized_fl.errors import UserError
from factorized_fl.methods import INSTALLED
from factorized_fl.presets import PRESETS, find_preset


def command_of(table: Mapping[str, Any], method: str | None = None, file: str = "config.toml") -> str | None:
    """`ffl run ...` for a parsed config.toml, or for the same scenario with another method; none if it is invalid.

    A configuration that came from a preset is the preset and what differs from it; any other is the run's own `file`.
    """
    try:
        config = from_table(table)
    except UserError:
        return None
    load = [] if (method or config.method) in INSTALLED else ["--load", "FILE.py"]
    words = ["ffl", *load, "run", config.preset if config.preset in PRESETS else file]
    if config.preset in PRESETS:
        wanted = config if method is None else _with_method(config, method)
        words += ["--method", wanted.method, *_settings(wanted, resolve(find_preset(config.preset), wanted.method))]
    elif method is not None:
        words += ["--method", method]
    if config.dataset == "folder":
        words += ["--data", "FOLDER"]
    return shlex.join(words)


def _with_method(config: Config, method: str) -> Config:
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return Config(**values | {"method": method, "options": {}})


def _settings(wanted: Config, given: Config) -> list[str]:
    """--set for every value that differs."""
    words = []
    for field in dataclasses.fields(Config):
        value = getattr(wanted, field.name)
        if field.name not in ("preset", "method", "options") and value != getattr(given, field.name):
            words += ["--set", _setting(field.name, value)]
    for name, value in wanted.options.items():
        if value != given.options[name]:
            words += ["--set", _setting(name, value)]
    return words


def _setting(name: str, value: Any) -> str:
    """key=value, as plain as it can be: a word without quotes if it is read back as the same word."""
    plain = f"{name}={value}"
    if isinstance(value, str) and parse_setting(plain) == (name, value):
        return plain
    return f"{name}={to_toml_value(value)}"
