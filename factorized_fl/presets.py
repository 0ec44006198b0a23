"""Named starting points: the demo with embedded data, and the paper's scenarios. The file presets.toml holds them."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from factorized_fl.config import Config
from factorized_fl.core.errors import unknown
from factorized_fl.profiles import DEFAULT_PROFILE, profile_settings

Table = dict[str, Any]

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DEMO_METHODS: list[str] = _FILE["demo_methods"]


def _expanded(like: str, matching: Table | None = None, released: Table | None = None, **settings: Any) -> Table:
    """The table of a preset: its settings, and equal options for every method that matches clients by similarity."""
    options = matching if released is None else {**released, **_FILE["released_code"]}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    methods = dict.fromkeys(_FILE["matched_methods"], options) if options else {}
    return {**_FILE["settings"][like], **values, "methods": methods}


PRESETS: dict[str, Table] = {name: _expanded(**table) for name, table in _FILE["presets"].items()}


def find_preset(name: str) -> Table:
    """The table of a preset, which holds the preset's name; raises a UserError for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, "`ffl presets`")
    return {**PRESETS[name], "preset": name}


def preset_values(name: str) -> Table:
    """The values of all options of a run with a preset, without those that depend on the method."""
    defaults = {field.name: field.default for field in dataclasses.fields(Config) if field.name != "options"}
    table = {"profile": DEFAULT_PROFILE, **find_preset(name)}
    table = profile_settings(table["profile"]) | table
    return {**defaults, **{key: value for key, value in table.items() if key in defaults}}
