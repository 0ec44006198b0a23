"""Shell completion: names of presets, methods and options, found without PyTorch."""

import dataclasses
import tomllib
from pathlib import Path

_CARDS = Path(__file__).parents[1] / "methods" / "cards.toml"


def presets_like(incomplete: str) -> list[str]:
    """Return the names of presets that begin with this text."""
    from factorized_fl.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def methods_like(incomplete: str) -> list[str]:
    """Return the names of the package's methods that begin with this text."""
    return [name for name in tomllib.loads(_CARDS.read_text(encoding="utf-8")) if name.startswith(incomplete)]


def entries_like(incomplete: str) -> list[str]:
    """Return lists of methods, separated by commas, whose last name begins with this text."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in methods_like(last)]


def settings_like(incomplete: str) -> list[str]:
    """Return the options of a run that begin with this text, each with an equals sign."""
    from factorized_fl.config import Config

    names = [field.name for field in dataclasses.fields(Config) if field.name not in ("preset", "options")]
    return [f"{name}=" for name in names if name.startswith(incomplete)]
