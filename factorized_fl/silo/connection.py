"""The state of one site's connection, as the coordinator's mailbox keeps it."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from factorized_fl import __version__
from factorized_fl.silo.messages import Message
from factorized_fl.silo.pieces import Counter


@dataclass
class Connection:
    """The state of one site's connection."""

    changed: threading.Condition  # notified when the site's pending poll may have an answer
    request: Message | None = None  # the open request
    answer: Message | None = None  # the answer to the last request
    seen: float = 0.0
    busy: str = ""
    done: int = 0  # its last complete round, as it reports
    train: int | None = None  # number of training images that it declared
    marks: tuple[str, str] = ("", "")  # sessions of its last two processes
    marked: float = 0.0  # time at which the later session was first seen
    doubled: float = -math.inf  # time at which the earlier session was seen again
    up: int = 0  # bytes received
    down: int = 0  # bytes sent
    told_end: bool = False
    refused: bool = False  # its agreement differs
    differs: Sequence[str] = ()  # the terms that differ, if it sent its terms
    version: str = __version__
    visit: bool = False  # it tries the federation and takes part in no round
    turn: int = 0  # number of its last poll
    transfers: Counter = field(default_factory=Counter)  # messages that travel in pieces
    moved: float = -math.inf  # time of the last piece
    slow: bool = False  # it was connected at a deadline, and has not answered since
    minute: float = -math.inf  # start of the minute in which faults are counted
    faults: int = 0  # number of faults in this minute
    bad: int = 0  # messages that failed a check

    def count_on(self, row: Mapping[str, Any]) -> None:
        """Add the numbers of an earlier process, from its status."""
        self.up, self.down = self.up + row["up_bytes"], self.down + row["down_bytes"]
        self.bad += row.get("refused", 0)
