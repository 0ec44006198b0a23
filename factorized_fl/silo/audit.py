"""A party's audit log: JSON lines, each with the digest of the line before, so that a later change breaks the chain.

The journal is for people and best-effort. The audit log is evidence: it records in order all messages, refusals and
decisions, with the party and digests of the tensors. Each line is on disk before the next.
"""

import json
import os
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.messages import Message

_FILE = "audit.jsonl"
_FIELDS = (
    "request",
    "round",
    "result",
    "reason",
    "declined",
    "steps",
    "models",
    "total",
)  # fields of a message that are logged; no accuracy


def audit_path(kit: Kit) -> Path:
    """Returns the path of a party's audit log."""
    return kit.logs / _FILE


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


class Audit:
    """Appends lines to a party's audit log; one process of the party writes it."""

    def __init__(self, kit: Kit) -> None:
        self.path, self.party = audit_path(kit), kit.party
        self.lock = threading.Lock()
        with plain_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        self.torn = bool(lines) and not lines[-1].endswith(b"\n")
        whole = lines[:-1] if self.torn else lines
        self.number = len(whole)
        self.before = _digest(whole[-1]) if whole else _digest(kit.agreement.id.encode())
        if self.torn:  # a crash or a full disk left half a line, to which no other line refers
            os.truncate(self.path, sum(map(len, whole)))

    def __call__(self, event: str, **about: Any) -> None:
        """Append one event; raises UserError if it cannot be written, because every event must be recorded."""
        with self.lock, plain_errors(self.path):
            entry = {"number": self.number + 1, "time": time.time(), "party": self.party, "event": event, **about}
            line = json.dumps({**entry, "before": self.before}, ensure_ascii=True).encode() + b"\n"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            with os.fdopen(os.open(self.path, flags, 0o600), "ab") as file:
                end = file.tell()
                try:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self.path, end)
                    raise
            self.number, self.before = self.number + 1, _digest(line)

    def message(self, event: str, message: Message, **about: Any) -> None:
        """Append an event about a message: its kind, its harmless fields, and a digest of its tensors."""
        known = {name: message.fields[name] for name in _FIELDS if name in message.fields}
        if shown := message.fields.get("clinical"):  # the names of the metrics that a site shows, without their values
            known["clinical"] = sorted(shown) if isinstance(shown, dict) else "malformed"
        digest = {"bytes": len(message.payload), "digest": _digest(message.payload)} if message.payload else {}
        self(event, kind=message.kind, **known, **digest, **about)


class Audited(NamedTuple):
    """The result of checking an audit log."""

    lines: int
    events: dict[str, int]  # number of lines by event
    last: str  # digest of the last line: a party that notes it elsewhere also notices lines cut off at the end


def verify(kit: Kit) -> Audited:
    """Check the chain of a party's audit log; raises UserError that names the first line that breaks it."""
    path = audit_path(kit)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        raise UserError(f"{kit.party} has no audit log yet: there is no '{path}'.") from None
    before, events = _digest(kit.agreement.id.encode()), dict[str, int]()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            told = (entry["number"], entry["before"], entry["party"], line.endswith(b"\n"))
            event = str(entry["event"])
        except (ValueError, KeyError, TypeError):
            told, event = None, ""
        if told != (number, before, kit.party, True):
            raise UserError(f"Line {number} of '{path}' breaks the chain: it, or the line before it, was changed.")
        before, events[event] = _digest(line), events.get(event, 0) + 1
    return Audited(len(lines), events, before)
