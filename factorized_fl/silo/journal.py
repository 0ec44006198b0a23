"""A party's journal: one line of plain text for each event."""

import os
import time
from contextlib import suppress
from pathlib import Path

from factorized_fl.core.files import plain_errors
from factorized_fl.silo.agreement import Kit


class Journal:
    """Appends lines to the journal; several processes of one party may do so at once."""

    def __init__(self, kit: Kit) -> None:
        self.path = journal_path(kit)
        with plain_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        """Write one line, with unprintable characters replaced. Best-effort: I/O errors are ignored."""
        plain = "".join(char if char.isprintable() else "?" for char in line)[:500]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with suppress(OSError), os.fdopen(os.open(self.path, flags, 0o666), "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain}\n")


def journal_path(kit: Kit) -> Path:
    """The path of a party's journal."""
    return kit.logs / "journal.txt"


def last_lines(kit: Kit, count: int = 8) -> list[str]:
    """The last lines of the party's journal."""
    try:
        return journal_path(kit).read_text(encoding="utf-8").splitlines()[-count:]
    except OSError:
        return []
