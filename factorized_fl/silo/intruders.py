"""Connections that the transport refuses, as lines of the coordinator's journal."""

import time
from collections import Counter

from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.transport import network

_EVERY = 60.0  # seconds between two lines about the same reason
_MOST_READ = 1_000_000  # bytes of the log read at one time


class RefusedConnections:
    """Reads the log of the party's process and reports each reason at most once a minute, with its count."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.path, self.journal = kit.logs / "process.txt", journal
        self.place = self.path.stat().st_size if self.path.exists() else 0
        self.counts: Counter[str] = Counter()
        self.reported: dict[str, float] = {}

    def look(self) -> None:
        """Read the new lines of the log."""
        try:
            if self.path.stat().st_size > self.place:
                with self.path.open("rb") as file:
                    file.seek(self.place)
                    new = file.read(_MOST_READ)
                whole = new[: new.rfind(b"\n") + 1] or (new if len(new) == _MOST_READ else b"")
                self.place += len(whole)
                lines = whole.decode(errors="replace").splitlines()
                self.counts.update(reason for line in lines if (reason := network().refusal(line)))
        except OSError:
            return
        now = time.monotonic()
        for reason, count in list(self.counts.items()):
            if now - self.reported.get(reason, -_EVERY) >= _EVERY:
                times = f" ({count} times)" if count > 1 else ""
                self.journal(f"refused a connection, as {reason}{times}")
                self.reported[reason] = now
                del self.counts[reason]
