"""Errors that a user can cause and correct."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """One sentence for the user, what is wrong and what to do: the command line prints it and exits with code 2."""


class Busy(UserError):
    """Another process holds the lock on a folder."""


class Damaged(UserError):
    """A file whose content differs from what was written."""


def is_lack_of_memory(error: BaseException) -> bool:
    """True if the error reports that memory ran out. PyTorch has no exception class for that on a CPU."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name: it suggests the nearest known name and lists all of them."""
    known = sorted(known)
    near = get_close_matches(given, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"Unknown {what} '{given}'.{hint} Known: {', '.join(known)}.")
