"""The coordinator's open requests and the answers to them. Sites poll for requests: they only connect outwards.

The name of a request gives its purpose (`round-7`) and is the same after a restart of either side. So an answer that is
late, replayed or from before a restart matches no open request and is dropped.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from factorized_fl import __version__
from factorized_fl.silo.agreement import differing_terms
from factorized_fl.silo.connection import Connection
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.trial import ROUNDS_OF_A_TRIAL

HOLD = 2.0  # seconds that a poll is held open while there is no request
_TICK = 1.0  # seconds between two calls of `tick`
_SHORT = 0.2
_SOON = HOLD + 1.0  # seconds within which every connected site sends a message
SILENT = 15.0  # seconds without a message after which a site counts as disconnected
_MINUTE, _ENOUGH = 60.0, 20  # faults of one site that are logged in one minute
_TWICE = 60.0  # seconds without a message after which a copy of a kit counts as gone


@dataclass
class Mailbox:
    """One line for each site. The transport's threads call `exchange`, the coordinator's thread everything else."""

    federation: str
    sites: tuple[str, ...]
    log: Callable[[str], None] = lambda line: None
    agreement: str = ""  # the digest that all messages must carry
    terms: Mapping[str, str] = field(default_factory=dict)  # digests of its terms
    largest: int = 0  # limit on the bytes of a message
    clock: Callable[[], float] = time.monotonic
    lines: dict[str, Connection] = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(init=False)  # notified when an answer has arrived
    absent: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)  # sites that the authority revoked
    ended: bool = False  # all rounds are done
    told_before: Collection[str] = ()  # sites that an earlier process notified of the end
    closed: bool = False  # this process no longer serves sites
    open: bool = False  # visitors are received
    turned_away: set[str] = field(default_factory=set)  # visitors that sent something invalid

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)
        self.lines = {site: self._connection() for site in self.sites}

    def _connection(self) -> Connection:
        return Connection(threading.Condition(self.lock))

    def _wake(self) -> None:
        """Let every pending poll look whether it has an answer. A poll must not wake the others: they are many."""
        for line in self.lines.values():
            line.changed.notify_all()
        self.changed.notify_all()

    def answer(self, site: str, sessions: Iterable[str], question: object, hold: float = HOLD) -> bytes:
        """The answer to an authenticated site's question; a bad one is logged. `sessions` are logins, latest first."""
        for session in sessions:
            self.recognise(site, session)
        try:
            if not isinstance(question, bytes | bytearray | memoryview):
                raise BadMessage("it is not a message of this federation")
            return pack(self.exchange(site, unpack(question, self.federation, self.largest), hold))
        except BadMessage as error:
            self.note(site, f"refused its message, as {error}")
            line = self.lines[site]
            line.bad += 1
            with self.lock:
                line.seen = self.clock()
                if line.request is not None:  # the message counts as an invalid answer
                    fields = {"request": line.request.text("request"), "result": "unreadable"}
                    fields["reason"] = str(error)[:200]
                    line.request, line.answer = None, Message("answer", self.federation, fields)
                    self.changed.notify_all()
            return pack(Message("wait", self.federation))

    def exchange(self, site: str, news: Message, hold: float = HOLD) -> Message:
        """Take a site's news and return its next request; without one, "wait" or "end" after `hold` seconds."""
        line = self.lines[site]
        with self.lock:
            reply = self._exchange(site, line, news, hold)
            return replace(reply, fields={**reply.fields, "twice": True}) if self._twice(line) else reply

    def _exchange(self, site: str, line: Connection, news: Message, hold: float) -> Message:
        if site in self.revoked:
            return Message("refused", self.federation, {"version": __version__, "revoked": True})
        if self._differs(site, line, news):
            return Message("refused", self.federation, {"version": __version__, "differs": list(line.differs)})
        line.visit = bool(news.fields.get("visit"))
        if line.visit and site in self.turned_away:
            return Message("refused", self.federation, {"version": __version__, "turned_away": True})
        if line.visit and not self.open:
            line.changed.wait_for(lambda: self.open, hold)
            return Message("wait", self.federation, {"closed": True})
        line.seen = self.clock()
        line.up += len(news.payload)
        if news.kind in ("piece", "fetch"):
            line.moved, part = self.clock(), self._piece(line, news)
            if isinstance(part, Message) and part.kind in ("have", "piece"):
                return part
            news = part or Message("poll", self.federation)
        elif news.kind != "busy":
            line.transfers.moving = ""
        line.busy = news.text("request") if news.kind == "busy" else ""
        if news.kind == "ready":
            line.train = news.whole("train", low=1, high=10**9)
            line.done = news.whole("done") if "done" in news.fields else line.done
        elif news.kind == "answer":
            name = news.text("request")
            line.slow = False
            if line.request is not None and line.request.text("request") == name:
                line.request, line.answer = None, news
                self.changed.notify_all()
            else:
                self.note(site, f"dropped an answer to {name}, which is not an open request")
        line.turn = turn = line.turn + 1  # a newer poll supersedes a pending one
        line.changed.notify_all()
        if news.kind == "busy":
            return Message("wait", self.federation)
        line.changed.wait_for(lambda: line.request is not None or self._ended(line) or line.turn != turn, hold)
        if line.turn != turn and line.request is None:
            # Two copies of a site would poll in a tight loop.
            line.changed.wait_for(lambda: self._ended(line), min(hold, _SHORT))
        line.seen = self.clock()
        if line.request is not None:
            reply = line.transfers.announce(line.request)
            line.down += len(reply.payload)
            return reply
        ended = self._ended(line)
        line.told_end = ended
        return Message("end" if ended else "wait", self.federation)

    def _ended(self, line: Connection) -> bool:
        """True if nothing is left to do for this site."""
        return self.ended and not (line.visit and line.done < ROUNDS_OF_A_TRIAL)

    def has_done(self, site: str, round_number: int) -> None:
        """Record a site's last complete round before the site reports it, and answer its pending poll if that ends."""
        with self.lock:
            self.lines[site].done = round_number
            self._wake()

    def _piece(self, line: Connection, news: Message) -> Message | None:
        """The reply to a piece, or the whole message with its last piece; None if there is neither."""
        if news.kind == "fetch":
            part = line.transfers.give(news, line.request)
            line.down += len(part.payload) if part else 0
            return part
        return line.transfers.take(news, self.largest)

    def _differs(self, site: str, line: Connection, news: Message) -> bool:
        """True if the site's agreement differs from the coordinator's; logged once, as is another version."""
        seat = self.sites.index(site)
        differs = news.fields.get("agreement", "") != self.agreement or news.fields.get("seat", seat) != seat
        theirs = str(news.fields.get("version", "an older version"))[:40]
        before, line.refused = line.refused, differs
        if "terms" in news.fields:
            line.differs = differing_terms(self.terms, news.fields["terms"])
        if differs and not before:
            what = f" in {', '.join(line.differs)}" if line.differs else ""
            why = f"its agreement differs from the coordinator's{what}: give it its kit again"
            if theirs != __version__:
                why = f"it runs factorized-fl {theirs}, the coordinator {__version__}"
                why += f", and their agreements differ{what}: install the same version"
            self.log(f"{site}: refused, as {why}")
        elif not differs and "version" in news.fields and theirs != line.version:
            self.log(f"{site} runs factorized-fl {theirs}, the coordinator {__version__}: they agree on all terms")
        line.version = theirs if "version" in news.fields else line.version
        return differs

    def recognise(self, site: str, mark: str) -> None:
        """Record a site's session. A new one is a restart; if the earlier one returns, the site runs in two places."""
        line = self.lines[site]
        with self.lock:
            old, new = line.marks
            now = self.clock()
            if mark == new or (mark == old and now - line.marked < SILENT):  # a delayed message of the earlier process
                return
            if mark == old:
                if not self._twice(line):
                    self.log(f"{site} runs in two places, with copies of one kit: stop one of them")
                line.doubled = now
            line.marks, line.marked = (new, mark), now

    def _twice(self, line: Connection) -> bool:
        return self.clock() - line.doubled < _TWICE

    def revoke(self, sites: Collection[str]) -> None:
        """Send nothing more to these sites, and drop their answers."""
        with self.lock:
            self.revoked |= set(sites)
            for site in self.revoked & self.lines.keys():
                self.lines[site] = self._connection()
            self._wake()

    def note(self, site: str, fault: str) -> None:
        """Log a fault of a site, at most 20 times a minute."""
        line, now = self.lines[site], self.clock()
        more = ""
        if now - line.minute > _MINUTE:
            more = f" (and {line.faults - _ENOUGH} more faults before)" if line.faults > _ENOUGH else ""
            line.minute, line.faults = now, 0
        line.faults += 1
        if line.faults <= _ENOUGH:
            self.log(f"{site}: {fault}{more}")

    def post(self, requests: Mapping[str, Message]) -> None:
        """Replace all open requests by these."""
        with self.lock:
            for site, line in self.lines.items():
                line.request, line.answer = requests.get(site), None
            self._wake()

    def receive_visitors(self) -> None:
        """Answer the polls of visitors from now on."""
        with self.lock:
            self.open = True
            self._wake()

    def collect(
        self,
        wanted: set[str],
        enough: int,
        deadline: float,
        stop: threading.Event,
        tick: Callable[[], None] | None = None,
        from_progress: bool = False,
    ) -> dict[str, Message]:
        """The answers of the wanted sites: all of them, or those given by the deadline if they are enough.

        With `from_progress` the deadline counts from the last piece of a message to or from one of the sites.

        Sites offline at a deadline are skipped until they reconnect; slow ones until they next answer.
        """
        until, ticked = self.clock() + deadline, self.clock()
        with self.lock:
            while True:
                answers = {site: a for site in wanted if (a := self.lines[site].answer) is not None}
                missing = wanted - answers.keys()
                self.absent -= {site for site in self.absent if self.connected(site)}
                if from_progress:
                    until = max((until, *(self.lines[site].moved + deadline for site in missing)))
                late = self.clock() >= until
                left_out = self.absent | {site for site in missing if self.lines[site].slow}
                enough_now = (late or missing <= left_out) and len(answers) >= enough
                if stop.is_set() or not missing or enough_now:
                    break
                if tick and self.clock() - ticked > _TICK:
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
        """True if a message of the site arrived lately."""
        return self.lines[site].seen > 0 and self.clock() - self.lines[site].seen < SILENT

    def doing(self, site: str) -> str:
        """The state of the site in a few words."""
        line = self.lines[site]
        if self.ended:
            return "knows the end" if self.knows_end(site) else "does not know the end yet"
        if line.refused:
            return "refused"
        if self._twice(line):
            return "runs in two places"
        if not self.connected(site):
            return "not connected"
        if line.transfers.moving:
            return line.transfers.moving
        if line.busy:
            return f"at work on {line.busy}"
        return "answered" if line.answer is not None else "waiting"

    @property
    def wire_bytes(self) -> tuple[int, int]:
        """Bytes of payload received and sent so far, including those sent again."""
        return sum(line.up for line in self.lines.values()), sum(line.down for line in self.lines.values())

    def end(self) -> None:
        """Answer every poll with the end from now on."""
        with self.lock:
            self.ended = True
            self._wake()

    def knows_end(self, site: str) -> bool:
        """True if the site has been notified of the end, by this process or by an earlier one."""
        return self.lines[site].told_end or site in self.told_before

    def see_off(self, seconds: float, stop: threading.Event, tick: Callable[[], None]) -> None:
        """Serves until all sites are notified of the end, or for up to `seconds`; `tick` is called meanwhile."""
        members = [site for site in self.sites if site not in self.revoked]
        untold, began, said = [site for site in members if site not in self.told_before], time.monotonic(), False
        # If all were notified before, the notice of some may have been lost.
        while missing := [site for site in untold or members if not self.lines[site].told_end]:
            waited = time.monotonic() - began
            if waited >= seconds:
                break
            if waited >= _SOON and not said:
                repeated = "repeated questions: all sites know of the end"
                what = f"{', '.join(missing)} to learn of the end" if untold else repeated
                self.log(f"waiting up to {seconds - waited:.0f} s for {what}")
                said = True
            tick()
            stop.wait(0.2)
        self.closed = True
        if untold and missing:
            advice = "run `ffl serve` again to notify sites that join again"
            self.log(f"{', '.join(missing)} did not learn of the end: {advice}")
