"""Parts of all commands: consoles, arguments and options, parsing of their values, interruption."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from factorized_fl.cli.completion import presets_like, settings_like
from factorized_fl.core.errors import UserError
from factorized_fl.core.toml_text import parse_setting

_LOG_WIDTH = 180


class _PlainConsole(Console):
    """Prints names of files and classes without markup, and without characters that could steer the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, with every character that is neither printable nor white space replaced by a question mark."""
        plain = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
        return super().render_str(plain, **options)


def _width() -> int | None:
    """Return the width of what is printed; None where the console knows it, as it does for a terminal.

    Output that a pipe takes, as of `| tee` or `| less`, is as wide as the terminal that shows errors. Without any
    terminal it is wide enough for tables in a log.
    """
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return None
    try:
        return os.get_terminal_size(2).columns or _LOG_WIDTH
    except OSError:
        return _LOG_WIDTH


# If several processes simulate one federation, only the first one prints.
FOLLOWS = os.environ.get("RANK", "0") != "0" and "WORLD_SIZE" in os.environ
console = _PlainConsole(width=_width(), markup=False, quiet=FOLLOWS)
notes = _PlainConsole(stderr=True, markup=False)  # no markup: names may contain square brackets


Preset = Annotated[
    str, typer.Argument(metavar="PRESET|file.toml", help="See `ffl presets`.", autocompletion=presets_like)
]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the datasets.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder to write; default: below runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option as key=value; can be repeated.", autocompletion=settings_like),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results, but no progress.")]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document; progress and notes go to standard error.")
]

_MOST_NUMBERS = 1000  # in a range like 1-3
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Interrupted(Exception):
    """Ctrl-C; Typer would handle a KeyboardInterrupt itself."""


def show_warnings_as_notes() -> None:
    """Print each warning of this process as one line, without the line of code that gave it."""
    warnings.showwarning = lambda message, *_: notes.print(f"Note: {message}", highlight=False, soft_wrap=True)


@contextmanager
def resumable() -> Iterator[None]:
    """Raise `Interrupted` at Ctrl-C, for a command that --resume can continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def print_json(document: Any) -> None:
    """Print a JSON document to standard output."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def parse_settings(texts: list[str] | None) -> dict[str, Any]:
    """The names and values of --set; raises a UserError for the name of another parameter of `compare` or `pilot`."""
    from factorized_fl import api, pilots

    settings = dict(parse_setting(text) for text in texts or [])
    parameters = (p for call in (api.compare, pilots.pilot) for p in signature(call).parameters.values())
    if taken := sorted(settings.keys() & {p.name for p in parameters if p.kind in _NAMED}):
        raise UserError(f"'{taken[0]}' is not an option of a run: where a command has it, give it as --{taken[0]}.")
    return settings


def parse_words(text: str) -> list[str]:
    """The names in a text that separates them by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_numbers(option: str, text: str) -> list[int]:
    """The whole numbers in a text like 1,2,5-7; raises a UserError that names the option."""
    numbers: list[int] = []
    for word in parse_words(text):
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"{option} '{text}' must be whole numbers separated by commas, for example 1,2,3 or 1-3.")
        low, high = int(first), int(last or first)
        if not low <= high < low + _MOST_NUMBERS:
            raise UserError(
                f"{option} '{text}': write the smaller number of '{word}' first; a range has at most {_MOST_NUMBERS}."
            )
        numbers += range(low, high + 1)
    return numbers
