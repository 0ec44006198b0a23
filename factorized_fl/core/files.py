"""Writes files completely or not at all, and reports a failure in one sentence."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from factorized_fl.core.errors import UserError

PART = ".part"  # suffix of a file while it is being written
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Raise a UserError of one sentence in place of an OSError or SafetensorError, such as a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        full = any(os.strerror(code) in f"{reason} {error}" for code in _FULL)
        advice = "free some space, then continue" if full else "make it writable, or choose another folder"
        raise UserError(f"Cannot write to '{path}' ({reason}): {advice}.") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole, so that a crash leaves the old or the new content; raises UserError if it cannot."""
    temporary = path.with_name(path.name + PART)
    with plain_errors(path.parent):
        try:
            temporary.unlink(missing_ok=True)  # left by a killed process, or a link to another place
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
