"""Errors that a user can cause and mend."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake the user can mend: one sentence that says what is wrong and what to do.

    The command line prints it without a traceback and exits with 2.
    """


class Busy(UserError):
    """Another process holds the lock on a folder."""


class Damaged(UserError):
    """A file that is not what was written."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether that is what an error says; PyTorch has no class for it on a CPU."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """Complain about a name nobody knows: suggest the nearest, then list all that exist."""
    known = sorted(known)
    near = get_close_matches(given, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"Unknown {what} '{given}'.{hint} Known: {', '.join(known)}.")
