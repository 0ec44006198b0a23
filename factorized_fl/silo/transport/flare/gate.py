"""A filter for the messages that FLARE receives: this federation's questions and answers, and connection upkeep.

FLARE by itself handles many more: requests to show files, to stop, to pass messages on to other parties. It asks for
the right to do so only if the sender says that it must. The gate drops such messages before FLARE sees them.
"""

import os
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from factorized_fl.silo.transport.flare.setup import LIMIT

CHANNEL, TOPIC = "factorized_fl", "exchange"
LARGEST_FRAME = 8_000_000  # bytes of one message of FLARE
_PIECE = 1_100_000  # bytes: FLARE sends questions and answers in pieces of 1 MiB
_MOST_OPEN = 8  # questions of one site that have begun to arrive and not ended
_MOST_REPORTED = 100
_HANDSHAKE = 10_000  # milliseconds for a stranger to show a certificate; gRPC would wait for two minutes
_ACCEPTED = {
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Quit),
    (CellChannel.CELLNET, CellChannelTopic.Bye),
    (STREAM_CHANNEL, stream_const.STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, stream_const.STREAM_ERROR_TOPIC),
}
# FLARE's private names that are replaced or read below.
_PRIVATE = (
    (CoreCell, "process_message"),
    (CoreCell, "_create_internal_listener"),
    (ClientRequestProcessors, "request_processors"),
    (grpc_driver, "GRPC_DEFAULT_OPTIONS"),
    (aio_grpc_driver, "GRPC_DEFAULT_OPTIONS"),
    (RxTask, "rx_task_map"),
)
_reported: set[tuple[str, str]] = set()
_listeners: list[Callable[[str], None]] = []


def close() -> None:
    """Install the filter in this process, before FLARE opens a connection.

    Raises AttributeError, and changes nothing, if a private name of FLARE does not exist: an assignment to a name that
    FLARE no longer uses would leave the gate open.
    """
    for owner, name in _PRIVATE:
        if name not in vars(owner):  # an inherited name would not be the one that is called
            raise AttributeError(f"{owner.__name__} has no {name}")
    lists = (grpc_driver.GRPC_DEFAULT_OPTIONS, aio_grpc_driver.GRPC_DEFAULT_OPTIONS)
    limits = [[place for place, (name, _) in enumerate(each) if name.endswith("message_length")] for each in lists]
    if not all(limits):
        raise AttributeError("GRPC_DEFAULT_OPTIONS has no message_length")

    receive = CoreCell.process_message

    def receive_accepted(cell: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        if is_accepted(message, endpoint.name, cell.my_info.fqcn):
            receive(cell, endpoint, connection, app_id, message)
        else:
            _report(endpoint.name, message)

    CoreCell.process_message = receive_accepted
    CoreCell._create_internal_listener = lambda cell, *args, **kwargs: None  # for child processes, which are not used
    ClientRequestProcessors.request_processors.clear()  # a second barrier against orders to a site
    for options, places in zip(lists, limits, strict=True):
        for place in places:
            options[place] = (options[place][0], LARGEST_FRAME)
        options.append(("grpc.server_handshake_timeout_ms", _HANDSHAKE))


def is_accepted(message: Any, sender: str, own: str) -> bool:
    """True if the message comes from the party at the other end, is for this one, and is of an accepted kind."""
    header = message.get_header
    route = (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, MessageHeaderKey.DESTINATION)
    if tuple(map(header, route)) != (sender, sender, own):
        return False
    if header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return True  # FLARE matches replies to its own requests
    kind = (header(MessageHeaderKey.CHANNEL), header(MessageHeaderKey.TOPIC))
    if kind == (STREAM_CHANNEL, stream_const.STREAM_DATA_TOPIC):
        return _is_piece(message, sender, own)
    return kind in _ACCEPTED


def _is_piece(message: Any, sender: str, own: str) -> bool:
    """True for a piece of a question to the coordinator, or of its answer, in plain bytes and within the limits."""
    header = message.get_header
    coordinator = own == FQCN.ROOT_SERVER
    channel, sequence = header(StreamHeaderKey.CHANNEL), header(StreamHeaderKey.SEQUENCE)
    if channel != (CHANNEL if coordinator else CellChannel.RETURN_ONLY):
        return False
    if coordinator and header(StreamHeaderKey.TOPIC) != TOPIC:
        return False
    # FLARE decodes other encodings into objects that can make it fetch data without end.
    if header(StreamHeaderKey.PAYLOAD_ENCODING) not in (None, Encoding.BYTES):
        return False
    most = int(os.environ.get(LIMIT, 0)) // 2**20 + 1
    if type(sequence) is not int or not 0 <= sequence <= most or len(message.payload or b"") > _PIECE:
        return False
    begun = dict(RxTask.rx_task_map)
    if not coordinator or (sender, header(StreamHeaderKey.STREAM_ID)) in begun:
        return True
    return sum(task.origin == sender and not (task.eos or task.failed) for task in begun.values()) < _MOST_OPEN


def listen(report: Callable[[str], None]) -> None:
    """Call `report` with a line about each dropped message."""
    _listeners.append(report)


def _report(sender: str, message: Any) -> None:
    """Report once for each sender and kind, so that a flood of messages does not fill the journal."""
    kind = str(message.get_header(StreamHeaderKey.CHANNEL) or message.get_header(MessageHeaderKey.CHANNEL))[:40]
    if (sender, kind) not in _reported and len(_reported) < _MOST_REPORTED:
        _reported.add((sender, kind))
        for report in _listeners:
            report(f"dropped a message of {sender} for FLARE's channel {kind!r}, which this federation does not use")
