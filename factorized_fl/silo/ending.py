"""The end of a federation at the coordinator: sites are notified, also by a process that is started again."""

import json
import threading
import time
from collections.abc import Callable

from factorized_fl.core.files import write_atomically
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.mailbox import HOLD, Mailbox

_FILE = "told.json"  # the sites that have been notified
_SOON = HOLD + 1.0  # seconds within which every connected site sends a message


class Ending:
    """Which sites have been notified that the federation is complete."""

    def __init__(self, kit: Kit, mailbox: Mailbox, log: Callable[[str], None]) -> None:
        self.path, self.sites, self.mailbox, self.log = kit.run / _FILE, kit.agreement.sites, mailbox, log
        self.closed = False  # this process no longer serves sites
        self._before: set[str] | None = None

    def told(self) -> set[str]:
        """The sites that have been notified, by this process or by an earlier one."""
        if self._before is None:
            try:
                self._before = set(json.loads(self.path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                self._before = set()
        return self._before | {site for site, line in self.mailbox.lines.items() if line.told_end}

    def untold(self) -> list[str]:
        """The sites that have not been notified that the federation is complete."""
        told = self.told()
        return [site for site in self.sites if site not in told]

    def wait(self, seconds: float, stop: threading.Event, tick: Callable[[], None]) -> None:
        """Serves until all sites are notified, or for up to `seconds`.

        If all were notified before, it serves sites whose notice may have been lost. `tick` is called meanwhile.
        """
        untold, began, said = self.untold(), time.monotonic(), False
        while missing := [site for site in untold or self.sites if not self.mailbox.lines[site].told_end]:
            waited = time.monotonic() - began
            if waited >= seconds:
                break
            if waited >= _SOON and not said:
                what = (
                    f"{', '.join(missing)} to learn of the end"
                    if untold
                    else "repeated questions: all sites know of the end"
                )
                self.log(f"waiting up to {seconds - waited:.0f} s for {what}")
                said = True
            tick()
            stop.wait(0.2)
        write_atomically(self.path, json.dumps(sorted(self.told())).encode())
        self.closed = True
        if untold := self.untold():
            self.log(
                f"{', '.join(untold)} did not learn of the end: run `ffl serve` again to notify sites that join again"
            )
