"""What travels between a site and the coordinator, and the checks on whatever arrives.

A message is a short JSON header and tensors as safetensors. Nothing of it is believed before it is checked: its size,
its header, the names, shapes, types, finiteness and norms of its tensors. This module does not load PyTorch, so that
the processes which only carry messages stay small; checks of tensors are in `checks`.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct(">I")
_LONGEST_HEADER = 100_000


class BadMessage(Exception):
    """Something arrived that nobody should act on."""


LIMIT = "NVFLARE_STREAMING_MAX_BLOB_SIZE"  # the variable that tells FLARE the most bytes of a message


@dataclass(frozen=True)
class Message:
    """A header and a payload of serialised tensors."""

    kind: str
    federation: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def whole(self, name: str, low: int = 0, high: int = 2**53) -> int:
        """A field that must be a whole number."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadMessage(f"{name} is {value!r}, not a whole number from {low} to {high}")
        return value

    def text(self, name: str, longest: int = 200) -> str:
        """A field that must be a short word."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise BadMessage(f"{name} is not a short word")
        return value

    def number(self, name: str) -> float | None:
        """A field that must be a finite number or missing."""
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
    """Read a message of this federation; anything else is refused."""
    if len(content) > largest:
        raise BadMessage(f"{len(content):,} bytes are more than the {largest:,} that this federation ever needs")
    try:
        (length,) = _LENGTH.unpack_from(content)
        if length > _LONGEST_HEADER or _LENGTH.size + length > len(content):
            raise BadMessage("its header is too long")
        header = json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length]))
    except (struct.error, ValueError, RecursionError):
        raise BadMessage("it has no readable header") from None
    if not isinstance(header, dict):
        raise BadMessage("it has no readable header")
    kind, given = header.pop("kind", None), header.pop("federation", None)
    if not isinstance(kind, str) or given != federation:
        raise BadMessage("it belongs to another federation")
    return Message(kind, federation, header, bytes(content[_LENGTH.size + length :]))
