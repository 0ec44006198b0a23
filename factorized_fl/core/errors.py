"""Errors that a user can cause and correct."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# A command, which stays as it is, or a flag with the word in capitals that stands for a value.
_FLAG = re.compile(r"`ffl [^`]*`|--([a-z]+(?:-[a-z]+)*)(?: (?:[A-Z]+\b|(?=[a-z_.]+=)))?")
_SWITCHES = ("resume",)
_COMMAND_LINE = "FFL_COMMAND_LINE"  # set while a command runs; the processes that it starts inherit it


class UserError(Exception):
    """One sentence for the user that says what is wrong and what to do: `ffl` prints it and exits with code 2.

    The sentence is written with the flags of the command line. Elsewhere it names arguments of Python instead.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if _COMMAND_LINE in os.environ else _FLAG.sub(_argument, text)


def _argument(flag: re.Match[str]) -> str:
    """Return the argument in Python that a flag stands for, or a whole command."""
    if flag[1] is None:
        return flag[0]
    name = flag[1].replace("-", "_")
    if name == "set":
        return "" if flag[0].endswith(" ") else "an argument"
    return f"{name}=True" if name in _SWITCHES else f"{name}="


@contextmanager
def flags_shown() -> Iterator[None]:
    """Within the context, errors of this process and of those that it starts name flags of the command line."""
    before = os.environ.get(_COMMAND_LINE)
    os.environ[_COMMAND_LINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_COMMAND_LINE]


class Busy(UserError):
    """Another process holds the lock on a folder."""


class Damaged(UserError):
    """A file whose content differs from what was written."""


def is_lack_of_memory(error: BaseException) -> bool:
    """True if the error reports that memory ran out. PyTorch has no exception class for that on a CPU."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


_MOST = 5  # known names in an error


def unknown(what: str, given: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for an unknown name: it suggests the nearest known name and lists up to five.

    `where` is the command that lists all.
    """
    known = sorted(known)
    near = get_close_matches(given, known, n=_MOST)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    if len(known) <= _MOST:
        return UserError(f"Unknown {what} '{given}'.{hint} Known: {', '.join(known)}.")
    others = f" Also near: {', '.join(near[1:])}." if near[1:] else ""
    shown = near or get_close_matches(given, known, n=_MOST, cutoff=0.0)
    known_here = others if near else f" Known: {', '.join(shown)} and {len(known) - len(shown)} more."
    return UserError(f"Unknown {what} '{given}'.{hint}{known_here}{f' {where} lists all.' if where else ''}")
