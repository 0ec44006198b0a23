"""A party's journal: what happened, one plain line each, for people."""

import os
import time
from pathlib import Path

from factorized_fl.core.files import plain_errors
from factorized_fl.silo.plan import Kit


class Journal:
    """Appends lines; several processes of one party may."""

    def __init__(self, kit: Kit) -> None:
        self.path = journal_path(kit)
        with plain_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        """Write one line, however odd what somebody else sent may be."""
        plain = "".join(char if char.isprintable() else "?" for char in line)[:500]
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain}\n")
        except OSError:
            pass  # a full disk must not stop who only wanted to say something


def journal_path(kit: Kit) -> Path:
    """Where it is."""
    return kit.logs / "journal.txt"
