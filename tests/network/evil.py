"""A site with a valid certificate and bad intentions: it sends what no honest agent would, and notes what happens."""

import json
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.defs import CellMessageHeaderKeys, new_cell_message

from factorized_fl.network.flare import CHANNEL, TOPIC, Agent
from factorized_fl.network.messages import Message, pack


class EvilAgent(Agent):
    """Runs in FLARE in the place of the agent."""

    def work(self) -> None:
        federation, largest = self.kit.plan.id, self.kit.plan.largest
        ready = pack(Message("ready", federation, {"train": 3, **self.about}))
        attempts: dict[str, Any] = {
            "rubbish": b"\x00\xff" * 50,
            "an object instead of bytes": {"fields": [1, 2, 3]},
            "another federation": pack(Message("ready", "0" * 16, {"train": 3})),
            "no training images": pack(Message("ready", federation, {"train": -1, **self.about})),
            "a little too large": b"\x00" * (largest + 1),
            "far too large": b"\x00" * (largest + 30_000_000),
            "an answer to nothing": pack(Message("answer", federation, {"request": "round-7", **self.about})),
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
