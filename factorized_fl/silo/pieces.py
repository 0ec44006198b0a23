"""Large messages in pieces: a slow connection has enough time, and a broken one continues where it stopped.

A site sends a large message as "piece" messages, and each reply, "have", names the next byte that the coordinator
needs. The coordinator announces a large request by "large", and the site asks for its pieces by "fetch". Every piece
has a time limit of its own, so the size of the whole message sets no limit to its duration.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.transport import Unreachable

WHOLE = 2**18  # bytes up to which a message travels in one piece
_SMALLEST, _LARGEST = 2**14, 2**22  # bytes of a piece
_QUICK, _SLOW = 0.5, 2.0  # seconds: pieces that take less are followed by larger ones, those that take more by smaller


def _name_of(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


@dataclass
class Pace:
    """The size of the next piece, from the duration of the last one, and pauses that keep to a limit of bandwidth."""

    limit: float = 0.0  # bytes per second, 0: no limit
    size: int = WHOLE
    sleep: Callable[[float], None] = time.sleep

    def took(self, count: int, seconds: float) -> None:
        """Adapt to a piece of so many bytes, and pause if it was faster than the limit."""
        if self.limit and count / self.limit > seconds:
            self.sleep(count / self.limit - seconds)
            seconds = count / self.limit
        if seconds > _SLOW:
            self.size = max(_SMALLEST, self.size // 2)
        elif seconds < _QUICK and count >= self.size:
            self.size = min(_LARGEST, 2 * self.size)

    def failed(self) -> None:
        """Make pieces smaller after one that did not arrive in time."""
        self.size = max(_SMALLEST, self.size // 4)


class Courier:
    """A site's side: exchanges messages with the coordinator, in pieces where they are large."""

    def __init__(
        self,
        ask: Callable[[Message], Message],
        federation: str,
        largest: int,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ask, self.federation, self.largest, self.clock = ask, federation, largest, clock
        self.pace = pace or Pace()
        self.sending, self.sent = "", 0  # the message in transfer, and how many of its bytes have arrived
        self.fetching, self.fetched = "", bytearray()

    def exchange(self, news: Message, about: Mapping[str, Any]) -> Message:
        """The coordinator's reply; raises Unreachable or BadMessage, after which a repetition continues."""
        content = pack(news)
        reply = self._send(content, about) if len(content) > WHOLE else self._timed(news, len(content))
        while reply.kind == "large":
            reply = self._fetch(reply, about)
        return reply

    def _timed(self, message: Message, count: int) -> Message:
        began = self.clock()
        try:
            reply = self.ask(message)
        except Unreachable:
            self.pace.failed()
            raise
        if message.kind in ("piece", "fetch"):
            self.pace.took(max(count, len(reply.payload)), self.clock() - began)
        return reply

    def _send(self, content: bytes, about: Mapping[str, Any]) -> Message:
        name = _name_of(content)
        if self.sending != name:
            self.sending, self.sent = name, 0
        while True:
            part = content[self.sent : self.sent + self.pace.size]
            fields = {**about, "transfer": name, "offset": self.sent, "total": len(content)}
            reply = self._timed(Message("piece", self.federation, fields, part), len(part))
            if reply.kind != "have":
                self.sending = ""
                return reply
            before, self.sent = self.sent, reply.whole("offset", high=len(content) - 1)
            if self.sent == before:
                raise Unreachable("it does not take the next piece of a message")

    def _fetch(self, announced: Message, about: Mapping[str, Any]) -> Message:
        name, total = announced.text("transfer"), announced.whole("total", low=1, high=self.largest)
        if self.fetching != name:
            self.fetching, self.fetched = name, bytearray()
        while len(self.fetched) < total:
            fields = {**about, "transfer": name, "offset": len(self.fetched), "size": self.pace.size}
            reply = self._timed(Message("fetch", self.federation, fields), 0)
            if reply.kind != "piece":  # the coordinator no longer asks for this
                self.fetching, self.fetched = "", bytearray()
                return reply
            if not reply.payload or reply.whole("offset") != len(self.fetched):
                raise BadMessage("it is not the piece that was asked for")
            self.fetched += reply.payload
        content = bytes(self.fetched)
        self.fetching, self.fetched = "", bytearray()
        if _name_of(content) != name:
            raise BadMessage("its pieces do not fit together")
        return unpack(content, self.federation, self.largest)


@dataclass
class Counter:
    """The coordinator's side of one site's transfers."""

    arriving: str = ""
    content: bytearray = field(default_factory=bytearray)
    arrived: str = ""  # the last message that is complete: its last piece may be sent again
    leaving: str = ""
    request: Message | None = None  # the announced request, and its bytes
    packed: bytes = b""
    moving: str = ""  # progress in words, for the status

    def take(self, news: Message, largest: int) -> Message | None:
        """The reply "have" to a piece, or the whole message with its last piece; None if that was sent again."""
        name, total = news.text("transfer"), news.whole("total", low=1, high=largest)
        offset = news.whole("offset", high=total - 1)
        if name == self.arrived:
            return None
        if name != self.arriving:
            self.arriving, self.content = name, bytearray()
        if offset == len(self.content):
            if offset + len(news.payload) > total:
                raise BadMessage("its pieces are longer than announced")
            self.content += news.payload
        if len(self.content) < total:
            self.moving = f"sending, {100 * len(self.content) // total}%"
            return Message("have", news.federation, {"offset": len(self.content)})
        content = bytes(self.content)
        self.arriving, self.content, self.arrived, self.moving = "", bytearray(), name, ""
        if _name_of(content) != name:
            raise BadMessage("its pieces do not fit together")
        return unpack(content, news.federation, largest)

    def announce(self, request: Message) -> Message:
        """The request if it is small, else the announcement of its pieces."""
        if self.request is not request:
            self.request, self.packed = request, pack(request)
            self.leaving = _name_of(self.packed) if len(self.packed) > WHOLE else ""
        if not self.leaving:
            return request
        return Message("large", request.federation, {"transfer": self.leaving, "total": len(self.packed)})

    def give(self, news: Message, request: Message | None) -> Message | None:
        """The piece that a site asks for, None if the request is no longer open."""
        name, offset = news.text("transfer"), news.whole("offset")
        size = news.whole("size", low=1, high=_LARGEST)
        if request is None or request is not self.request or name != self.leaving or offset >= len(self.packed):
            return None
        part = self.packed[offset : offset + size]
        self.moving = f"receiving, {100 * (offset + len(part)) // len(self.packed)}%"
        return Message("piece", news.federation, {"offset": offset}, part)
