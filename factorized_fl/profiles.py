"""Profiles: settings that fill in what neither the preset nor the user sets. The file profiles.toml holds them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROFILES: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DEFAULT_PROFILE = "tuned"


def profile_settings(profile: str, method: str = "") -> dict[str, Any]:
    """Return the settings of a profile, with those for a method and its options if one is named; {} for no profile."""
    table = PROFILES.get(profile, {})
    of_all = {name: value for name, value in table.items() if name != "methods"}
    return of_all | dict(table.get("methods", {}).get(method, {}))
