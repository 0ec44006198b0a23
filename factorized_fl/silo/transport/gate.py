"""What FLARE may hear from others: this federation's questions and answers, and what keeps a line open. Nothing else.

FLARE listens to far more: to requests to show files, to stop, to pass messages on to other parties. It asks for the
right to do so only if the sender says that it must. So no such message gets as far as FLARE, whoever sends it.
"""

import os
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from factorized_fl.silo.messages import LIMIT

CHANNEL, TOPIC = "factorized_fl", "exchange"
LARGEST_FRAME = 8_000_000  # bytes of one message of FLARE
_PIECE = 1_100_000  # bytes: FLARE sends questions and answers in pieces of 1 MiB
_MOST_OPEN = 8  # questions of one site that have begun to arrive and not ended
_MOST_TOLD = 100
_HEARD = {
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
    CoreCell._create_internal_listener = lambda cell, *args, **kwargs: None  # for children, which nobody has here
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
    if kind == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        return _is_piece(message, sender, own)
    return kind in _HEARD


def _is_piece(message: Any, sender: str, own: str) -> bool:
    """Whether this is a piece of a question to the coordinator, or of its answer: plain bytes, and not too many.

    What FLARE would make of anything but bytes can be told to fetch more, without end.
    """
    header = message.get_header
    coordinator = own == FQCN.ROOT_SERVER
    channel, sequence = header(StreamHeaderKey.CHANNEL), header(StreamHeaderKey.SEQUENCE)
    if channel != (CHANNEL if coordinator else CellChannel.RETURN_ONLY):
        return False
    if coordinator and header(StreamHeaderKey.TOPIC) != TOPIC:
        return False
    if header(StreamHeaderKey.PAYLOAD_ENCODING) not in (None, Encoding.BYTES):
        return False
    most = int(os.environ.get(LIMIT, 0)) // 2**20 + 1
    if type(sequence) is not int or not 0 <= sequence <= most or len(message.payload or b"") > _PIECE:
        return False
    begun = dict(RxTask.rx_task_map)
    if not coordinator or (sender, header(StreamHeaderKey.STREAM_ID)) in begun:
        return True
    return sum(task.origin == sender and not (task.eos or task.failed) for task in begun.values()) < _MOST_OPEN


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
