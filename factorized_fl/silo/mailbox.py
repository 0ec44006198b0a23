"""The coordinator's open requests and the answers to them. Sites come and fetch: they only ever connect outwards.

A request has a name that says what it asks (`round-7`), the same after a restart of either side, so an answer that
nobody waits for - late, replayed, from before a restart - is recognised and dropped.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from factorized_fl import __version__
from factorized_fl.silo.messages import Message

HOLD = 2.0  # seconds that a site's question is held open when there is nothing to do
_TICK = 1.0
_SHORT = 0.2
SILENT = 15.0  # a site not heard of for so long is not connected
_MINUTE, _ENOUGH = 60.0, 20  # of what a site does wrong in a minute so many lines are told
_TWICE = 60.0  # seconds after which a copy of a kit that is no longer heard of is gone


@dataclass
class Line:
    """What is known of one site's connection."""

    request: Message | None = None  # what it is to do
    answer: Message | None = None  # what it said to that
    seen: float = 0.0
    busy: str = ""
    train: int | None = None  # training images it declared
    marks: tuple[str, str] = ("", "")  # of its last two processes
    marked: float = 0.0  # when the later one was first seen
    doubled: float = -math.inf  # when the earlier one came back
    up: int = 0  # bytes that came
    down: int = 0  # bytes that went
    told_end: bool = False
    refused: bool = False  # its agreement is another
    turn: int = 0  # of its questions
    slow: bool = False  # it was there at a deadline, and has answered nothing since
    minute: float = -math.inf  # when the one began in which faults are counted
    faults: int = 0  # in it


@dataclass
class Mailbox:
    """One line for each site. FLARE's threads call `exchange`; the coordinator's thread does the rest."""

    federation: str
    sites: tuple[str, ...]
    log: Callable[[str], None] = lambda line: None
    agreement: str = ""  # the mark that all messages must carry
    clock: Callable[[], float] = time.monotonic
    lines: dict[str, Line] = field(init=False)
    changed: threading.Condition = field(default_factory=threading.Condition)
    absent: set[str] = field(default_factory=set)
    ended: bool = False

    def __post_init__(self) -> None:
        self.lines = {site: Line() for site in self.sites}

    def exchange(self, site: str, news: Message, hold: float = HOLD) -> Message:
        """A site tells its news and asks what to do next; with nothing to do it is answered after `hold` seconds."""
        line = self.lines[site]
        with self.changed:
            reply = self._exchange(site, line, news, hold)
            return replace(reply, fields={**reply.fields, "twice": True}) if self._twice(line) else reply

    def _exchange(self, site: str, line: Line, news: Message, hold: float) -> Message:
        if self._differs(site, line, news):
            return Message("refused", self.federation, {"version": __version__})
        line.seen = self.clock()
        line.up += len(news.payload)
        line.busy = news.text("request") if news.kind == "busy" else ""
        if news.kind == "ready":
            line.train = news.whole("train", low=1, high=10**9)
        elif news.kind == "answer":
            self._take(site, line, news)
        line.turn = turn = line.turn + 1  # who asks again while a question is held is given up on the first
        self.changed.notify_all()
        if news.kind == "busy":
            return Message("wait", self.federation)
        self.changed.wait_for(lambda: line.request is not None or self.ended or line.turn != turn, hold)
        if line.turn != turn and line.request is None:
            self.changed.wait_for(lambda: self.ended, min(hold, _SHORT))  # or two copies of a site would race
        line.seen = self.clock()
        if line.request is not None:
            line.down += len(line.request.payload)
            return line.request
        line.told_end = self.ended
        return Message("end" if self.ended else "wait", self.federation)

    def _differs(self, site: str, line: Line, news: Message) -> bool:
        """Whether the site has agreed to something else; told once."""
        before, line.refused = line.refused, news.fields.get("agreement", "") != self.agreement
        if line.refused and not before:
            theirs = str(news.fields.get("version", "an older version"))[:40]
            why = "its agreement differs from the coordinator's: give it its kit again"
            if theirs != __version__:
                why = f"it runs factorized-fl {theirs}, the coordinator {__version__}: install the same version"
            self.log(f"{site}: refused, as {why}")
        return line.refused

    def recognise(self, site: str, mark: str) -> None:
        """A site that was started again has a new mark; one whose old mark comes back runs in two places."""
        line = self.lines[site]
        with self.changed:
            old, new = line.marks
            now = self.clock()
            if mark == new or (mark == old and now - line.marked < SILENT):  # it may have been on its way
                return
            if mark == old:
                if not self._twice(line):
                    self.log(f"{site} runs in two places, with copies of one kit: stop one of them")
                line.doubled = now
            line.marks, line.marked = (new, mark), now

    def _twice(self, line: Line) -> bool:
        return self.clock() - line.doubled < _TWICE

    def _take(self, site: str, line: Line, news: Message) -> None:
        name = news.text("request")
        line.slow = False
        if line.request is None or line.request.text("request") != name:
            self.note(site, f"dropped an answer to {name}, for which nobody waits")
            return
        line.request, line.answer = None, news

    def note(self, site: str, fault: str) -> None:
        """Tell what a site does wrong, but not so often that nothing else is to be seen."""
        line, now = self.lines[site], self.clock()
        more = ""
        if now - line.minute > _MINUTE:
            more = f" (and {line.faults - _ENOUGH} more faults before)" if line.faults > _ENOUGH else ""
            line.minute, line.faults = now, 0
        line.faults += 1
        if line.faults <= _ENOUGH:
            self.log(f"{site}: {fault}{more}")

    def spoil(self, site: str, reason: str) -> Message:
        """A site sent what cannot be read: if something was asked of it, this is its answer, and it will not do."""
        line = self.lines[site]
        with self.changed:
            line.seen = self.clock()
            if line.request is not None:
                fields = {"request": line.request.text("request"), "result": "unreadable", "reason": reason[:200]}
                line.request, line.answer = None, Message("answer", self.federation, fields)
                self.changed.notify_all()
        return Message("wait", self.federation)

    def post(self, requests: Mapping[str, Message]) -> None:
        """Give these sites something to do; whatever they still had to do is forgotten."""
        with self.changed:
            for site, line in self.lines.items():
                line.request, line.answer = requests.get(site), None
            self.changed.notify_all()

    def collect(
        self,
        wanted: set[str],
        enough: int,
        deadline: float,
        stop: threading.Event,
        tick: Callable[[], None] = lambda: None,
    ) -> dict[str, Message]:
        """The answers of the wanted: all of them, or at the deadline as many as there are, if these are enough.

        Who was silent at a deadline is not waited for again before it is heard again; who was there, but too slow, not
        before it has answered something, however late. `tick` is called now and then.
        """
        until = self.clock() + deadline
        ticked = self.clock()
        answers: dict[str, Message] = {}
        missing = set(wanted)
        late = False
        with self.changed:
            while not stop.is_set():
                answers = {site: a for site in wanted if (a := self.lines[site].answer) is not None}
                missing = wanted - answers.keys()
                self.absent -= {site for site in self.absent if self.connected(site)}
                late = self.clock() >= until
                left_out = self.absent | {site for site in missing if self.lines[site].slow}
                if not missing or ((late or missing <= left_out) and len(answers) >= enough):
                    break
                if self.clock() - ticked > _TICK:
                    tick()
                    ticked = self.clock()
                self.changed.wait(0.2)
            for site in missing:
                self.lines[site].request = None
                if not self.connected(site):
                    self.absent.add(site)
                elif late and enough:
                    self.lines[site].slow = True
            return answers

    def connected(self, site: str) -> bool:
        """Whether the site was heard of lately."""
        return self.lines[site].seen > 0 and self.clock() - self.lines[site].seen < SILENT

    def doing(self, site: str) -> str:
        """What the site seems to be doing."""
        line = self.lines[site]
        if line.refused:
            return "refused"
        if self._twice(line):
            return "runs in two places"
        if not self.connected(site):
            return "not connected"
        if line.busy:
            return f"at work on {line.busy}"
        return "answered" if line.answer is not None else "waiting"

    @property
    def wire_bytes(self) -> tuple[int, int]:
        """Bytes of payload that came and went so far, resent ones included."""
        return sum(line.up for line in self.lines.values()), sum(line.down for line in self.lines.values())

    def count(self, site: str, up: int, down: int) -> None:
        """Add what went between a site and an earlier coordinator."""
        with self.changed:
            line = self.lines[site]
            line.up, line.down = line.up + up, line.down + down

    def end(self) -> None:
        """Tell everybody who asks that all is done."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
