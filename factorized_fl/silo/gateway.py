"""The coordinator's side of the transport: it checks every question, and hands valid ones to the mailbox."""

import time
from collections.abc import Callable

from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.coordinator import Coordinator
from factorized_fl.silo.mailbox import HOLD, Mailbox
from factorized_fl.silo.messages import BadMessage, pack, unpack
from factorized_fl.silo.transport import Sender

FAREWELL = 60.0  # seconds that a finished coordinator keeps serving sites that have not heard of the end
_LAST_ANSWER = 0.5


class Gateway:
    """Answers questions, which arrive in any thread, and runs the coordinator's rounds."""

    def __init__(self, kit: Kit, log: Callable[[str], None], hold: float = HOLD) -> None:
        self.kit, self.log, self.hold = kit, log, hold
        self.mailbox = Mailbox(kit.agreement.id, kit.agreement.sites, log, kit.mark)

    def answer(self, sender: Sender, question: bytes) -> bytes:
        """The answer to a site's question. A question that fails a check is reported in the journal."""
        for session in sender.sessions:
            self.mailbox.recognise(sender.name, session)
        try:
            if not isinstance(question, bytes | bytearray | memoryview):
                raise BadMessage("it is not a message of this federation")
            news = unpack(question, self.kit.agreement.id, self.kit.agreement.largest)
            reply = self.mailbox.exchange(sender.name, news, self.hold)
        except BadMessage as error:
            self.mailbox.note(sender.name, f"refused its message, as {error}")
            reply = self.mailbox.spoil(sender.name, str(error))
        return pack(reply)

    def work(self) -> None:
        """Run all rounds, then keep answering until every site knows of the end, for a limited time."""
        coordinator = Coordinator(self.kit, self.mailbox, self.log)
        coordinator.run()
        coordinator.farewell(FAREWELL)
        time.sleep(_LAST_ANSWER)  # the transport may still be sending it
        self.log("the federation is complete")
