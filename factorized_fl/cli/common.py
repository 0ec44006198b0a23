"""What the commands have in common: where they print, the options they share, how they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from factorized_fl.config import parse_setting

console = Console(width=None if sys.stdout.isatty() else 180)  # tables in a log or a pipe are not squeezed
notes = Console(stderr=True)

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
    """The values of --set."""
    return dict(parse_setting(text) for text in texts or [])
