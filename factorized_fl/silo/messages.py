"""The messages between a site and the coordinator, and the checks of a message's size and header.

A message is a short JSON header, followed by tensors as safetensors. Every part is checked before it is used: size,
header, and the names, shapes, types, finiteness and norms of tensors. This module does not import PyTorch, so that
processes which only carry messages stay small; tensors are checked in `checks`.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct(">I")
_LONGEST_HEADER = 100_000


class BadMessage(Exception):
    """A message that fails a check and must be ignored; the text names the check."""


@dataclass(frozen=True)
class Message:
    """A header and a payload of serialised tensors."""

    kind: str
    federation: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def whole(self, name: str, low: int = 0, high: int = 2**53) -> int:
        """The field as a whole number; raises BadMessage if it is none or outside the limits."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadMessage(f"{name} is {value!r}, not a whole number from {low} to {high}")
        return value

    def text(self, name: str, longest: int = 200) -> str:
        """The field as a short printable string; raises BadMessage if it is none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise BadMessage(f"{name} is not a short word")
        return value

    def number(self, name: str) -> float | None:
        """The field as a finite number, None if it is missing; raises BadMessage for anything else."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e30 or value != value:
            raise BadMessage(f"{name} is {value!r}, not a number")
        return float(value)


def pack(message: Message) -> bytes:
    """The bytes of a message."""
    header = {**message.fields, "kind": message.kind, "federation": message.federation}
    head = json.dumps(header, allow_nan=False).encode()
    return _LENGTH.pack(len(head)) + head + message.payload


def unpack(content: bytes | bytearray | memoryview, federation: str, largest: int) -> Message:
    """The message in these bytes; raises BadMessage if it is too large, unreadable or of another federation."""
    if len(content) > largest:
        raise BadMessage(f"{len(content):,} bytes are more than the {largest:,} that this federation ever needs")
    try:
        (length,) = _LENGTH.unpack_from(content)
        if length > _LONGEST_HEADER or _LENGTH.size + length > len(content):
            raise BadMessage("its header is too long")
        header = json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length]))
        kind, given = header.pop("kind", None), header.pop("federation", None)
    except (struct.error, ValueError, AttributeError, TypeError, RecursionError):
        raise BadMessage("it has no readable header") from None
    if not isinstance(kind, str) or given != federation:
        raise BadMessage("it belongs to another federation")
    return Message(kind, federation, header, bytes(content[_LENGTH.size + length :]))
