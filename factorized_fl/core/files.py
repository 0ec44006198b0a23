"""Files that are there whole or not at all, and one sentence if they cannot be written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from factorized_fl.core.errors import UserError

PART = ".part"  # ends the name of a file that is being written
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        full = any(os.strerror(code) in f"{reason} {error}" for code in _FULL)
        advice = "free some space, then continue" if full else "make it writable, or choose another folder"
        raise UserError(f"Cannot write to '{path}' ({reason}): {advice}.") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash there is the old one or the new one."""
    temporary = path.with_name(path.name + PART)
    with plain_errors(path.parent):
        try:
            temporary.unlink(missing_ok=True)  # of who was killed, or a link to elsewhere
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
