"""What FLARE may hear from others: this federation's questions and answers, and what keeps a line open. Nothing else.

FLARE listens to far more: to requests to show files, to stop, to pass messages on to other parties. It asks for the
right to do so only if the sender says that it must. So no such message gets as far as FLARE, whoever sends it.
"""

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

CHANNEL, TOPIC = "factorized_fl", "exchange"
LARGEST_FRAME = 8_000_000  # bytes of one message of FLARE, which sends what is larger in pieces of 1 MB
_MOST_TOLD = 100
_HEARD = {
    (CHANNEL, TOPIC),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Quit),
    (CellChannel.CELLNET, CellChannelTopic.Bye),
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
}
_told: set[tuple[str, str]] = set()
_listeners: list[Callable[[str], None]] = []


def close() -> None:
    """Shut out everything else in this process, before FLARE opens a line."""
    receive = CoreCell.process_message

    def receive_if_due(cell: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        if is_due(message, endpoint.name, cell.my_info.fqcn):
            receive(cell, endpoint, connection, app_id, message)
        else:
            _tell(endpoint.name, message)

    CoreCell.process_message = receive_if_due
    ClientRequestProcessors.request_processors.clear()  # a second lock on that door
    for driver in (grpc_driver, aio_grpc_driver):
        for position, (name, _) in enumerate(driver.GRPC_DEFAULT_OPTIONS):
            if name.endswith("message_length"):
                driver.GRPC_DEFAULT_OPTIONS[position] = (name, LARGEST_FRAME)


def is_due(message: Any, sender: str, own: str) -> bool:
    """Whether a message comes from who is at the other end of the line, is for this party and is of a known kind."""
    header = message.get_header
    route = (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, MessageHeaderKey.DESTINATION)
    if tuple(map(header, route)) != (sender, sender, own):
        return False
    if header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return True  # FLARE knows what it has asked for
    kind = (header(MessageHeaderKey.CHANNEL), header(MessageHeaderKey.TOPIC))
    if kind == (STREAM_CHANNEL, STREAM_DATA_TOPIC):  # pieces of a larger one
        kind = (header(StreamHeaderKey.CHANNEL), header(StreamHeaderKey.TOPIC))
        return kind == (CHANNEL, TOPIC) or kind[0] == CellChannel.RETURN_ONLY
    return kind in _HEARD


def listen(tell: Callable[[str], None]) -> None:
    """Hear of what is shut out."""
    _listeners.append(tell)


def _tell(sender: str, message: Any) -> None:
    """Once for each sender and kind: who floods this party shall not flood its journal."""
    kind = str(message.get_header(StreamHeaderKey.CHANNEL) or message.get_header(MessageHeaderKey.CHANNEL))[:40]
    if (sender, kind) not in _told and len(_told) < _MOST_TOLD:
        _told.add((sender, kind))
        for tell in _listeners:
            tell(f"shut out a message of {sender} for FLARE's channel {kind!r}, which this federation does not use")
