"""What the commands have in common: where they print, the options they share, how they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from factorized_fl import api
from factorized_fl.config import parse_setting
from factorized_fl.core.errors import UserError

console = Console(width=None if sys.stdout.isatty() else 180, markup=False)  # tables in a log are not squeezed
notes = Console(stderr=True, markup=False)  # square brackets stand for themselves

Preset = Annotated[str, typer.Argument(metavar="PRESET|file.toml", help="See `ffl presets`.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder that holds the data sets.")]
Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")]
Setting = Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given several times.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, results only.")]


class Interrupted(Exception):
    """Ctrl-C, out of reach of the parser's own handling of it."""


@contextmanager
def resumable() -> Iterator[None]:
    """For work that --resume can go on with."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def parse_settings(texts: list[str] | None) -> dict[str, Any]:
    """The values of --set; none may have the name of something else that a command hands on beside them."""
    settings = dict(parse_setting(text) for text in texts or [])
    beside = {p.name for call in (api.compare, api.pilot) for p in signature(call).parameters.values() if _named(p)}
    if taken := sorted(beside & set(settings)):
        raise UserError(f"'{taken[0]}' is no setting of a run: where a command has it, give it as --{taken[0]}.")
    return settings


def _named(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def parse_words(text: str) -> list[str]:
    """Names separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_numbers(option: str, text: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [int(word) for word in parse_words(text)]
    except ValueError:
        raise UserError(f"{option} '{text}' must be whole numbers separated by commas, for example 1,2,3.") from None
