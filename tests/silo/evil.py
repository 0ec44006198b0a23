"""A malicious site with a valid certificate: it sends what no honest agent would, and stores the replies."""

import json
import time
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FedEventHeader
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import CellMessageHeaderKeys, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.widgets.fed_event import FED_EVENT_TOPIC

from factorized_fl import __version__
from factorized_fl.silo.messages import Message, pack
from factorized_fl.silo.transport.flare.components import SiteComponent
from factorized_fl.silo.transport.flare.gate import CHANNEL, TOPIC


class EvilAgent(SiteComponent):
    """Runs in FLARE in the place of the agent."""

    def work(self) -> None:
        federation, largest = self.kit.agreement.id, self.kit.agreement.largest
        about = {"agreement": self.kit.mark, "version": __version__}
        ready = pack(Message("ready", federation, {"train": 3, **about}))
        attempts: dict[str, Any] = {
            "rubbish": b"\x00\xff" * 50,
            "an object instead of bytes": {"fields": [1, 2, 3]},
            "another federation": pack(Message("ready", "0" * 16, {"train": 3})),
            "no training images": pack(Message("ready", federation, {"train": -1, **about})),
            "a little too large": b"\x00" * (largest + 1),
            "far too large": b"\x00" * (largest + 30_000_000),
            "an answer to nothing": pack(Message("answer", federation, {"request": "round-7", **about})),
            "honest": ready,
            "somebody else's name": ready,
        }
        replies = {}
        for name, payload in attempts.items():
            if name == "somebody else's name":
                self.cell.core_cell.add_outgoing_request_filter(
                    channel="*",
                    topic="*",
                    cb=lambda message: message.set_header(CellMessageHeaderKeys.CLIENT_NAME, "birch"),
                )
            reply = self.cell.send_request(
                channel=CHANNEL,
                topic=TOPIC,
                target=FQCN.ROOT_SERVER,
                request=new_cell_message({}, payload),
                timeout=4.0,
                optional=True,
            )
            replies[name] = str(reply.get_header(MessageHeaderKey.RETURN_CODE))
        (self.kit.path / "replies.json").write_text(json.dumps(replies))


class Idler(SiteComponent):
    """A site that starts FLARE and does nothing else."""

    def work(self) -> None:
        (self.kit.path / "up").touch()
        while True:
            time.sleep(1.0)


class Commander(SiteComponent):
    """Sends FLARE's own kinds of message: orders to another site through the coordinator, an event to it."""

    def work(self) -> None:
        event = Shareable()
        event.set_header(FedEventHeader.EVENT_TYPE, EventType.SYSTEM_START)
        event.set_header(FedEventHeader.TIMESTAMP, time.time())
        event.set_header(FedEventHeader.ORIGIN, "cedar")
        event.set_header(ReservedHeaderKey.TOPIC, FED_EVENT_TOPIC)
        orders = {
            "show a file": ("birch", CellChannel.CLIENT_MAIN, SysCommandTopic.SHELL, "head federation.toml"),
            "say what you are": ("birch", CellChannel.CLIENT_MAIN, SysCommandTopic.SYS_INFO, ""),
            "stop": ("birch", CellChannel.CLIENT_MAIN, TrainingTopic.SHUTDOWN, ""),
        }
        replies = {}
        for name, (target, channel, topic, body) in orders.items():
            replies[name] = self._send(target, channel, topic, Order(topic, body))
        replies["begin again"] = self._send(FQCN.ROOT_SERVER, CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC, event)
        replies["swallow this"] = self._send(FQCN.ROOT_SERVER, CHANNEL, TOPIC, b"\x00" * 60_000_000, core=True)
        (self.kit.path / "replies.json").write_text(json.dumps(replies))

    def _send(self, target: str, channel: str, topic: str, payload: Any, core: bool = False) -> str:
        cell = self.cell.core_cell if core else self.cell  # the one sends whole what the other cuts into pieces
        message = new_cell_message({}, payload)
        reply = cell.send_request(channel, topic, target, message, timeout=4.0, optional=True)
        code = str(reply.get_header(MessageHeaderKey.RETURN_CODE))
        return f"{code} {getattr(reply.payload, 'body', '')}".strip()
