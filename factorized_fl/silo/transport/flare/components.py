"""The components that FLARE builds: one in the coordinator's process, one in each site's.

FLARE gives them an authenticated, encrypted connection. Sites ask and the coordinator answers: a site opens no port and
accepts no job.
"""

import os
import threading
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.defs import CellMessageHeaderKeys, new_cell_message

from factorized_fl.silo.agent import Agent
from factorized_fl.silo.agreement import read_kit
from factorized_fl.silo.finish import end_with_parent
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.status import write_status
from factorized_fl.silo.transport import FINAL, CannotContinue, Unreachable
from factorized_fl.silo.transport.flare import gate
from factorized_fl.silo.transport.flare.gate import CHANNEL, TOPIC


class _Component(FLComponent, ABC):  # type: ignore[misc]
    """Starts one thread when FLARE has started, and ends the process with that thread or with the supervisor."""

    def __init__(self, kit: str) -> None:
        super().__init__()
        self.kit = read_kit(Path(kit))
        self.journal = Journal(self.kit)
        self.started = False
        gate.listen(self.journal)
        end_with_parent(os.getppid())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Called by FLARE for every event; only its start matters here."""
        if event_type == EventType.SYSTEM_START and not self.started:
            self.started = True
            self.connect(fl_ctx.get_engine())
            threading.Thread(target=self.run, daemon=True).start()

    @abstractmethod
    def connect(self, engine: Any) -> None:
        """Keep FLARE's connection."""

    @abstractmethod
    def work(self) -> None:
        """Take part until the end; when this returns, the party is done."""

    def run(self) -> None:
        """Work, then end the process."""
        try:
            self.work()
        except CannotContinue as error:
            self.journal(str(error))
            write_status(self.kit, str(error))
            os._exit(FINAL)
        except BaseException as error:
            try:
                self.journal(f"stopped by an error, will be started again: {error}")
                traceback.print_exc()
            finally:  # even if the disk is full
                os._exit(1)
        os._exit(0)


class CoordinatorComponent(_Component):
    """Passes the questions of sites to the coordinator's mailbox."""

    def connect(self, engine: Any) -> None:
        """Receive questions from now on."""
        terms = self.kit.agreement
        mark, agreed = self.kit.mark, self.kit.terms
        self.mailbox = Mailbox(terms.id, terms.sites, self.journal, mark, agreed, largest=terms.largest)
        self.manager = engine.server.client_manager
        self.logins: dict[str, str] = {}
        engine.server.cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self.exchange)

    def exchange(self, request: Any) -> Any:
        """The reply to a request. FLARE has verified the certificate, the token, and that both belong to this name."""
        site = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        if site not in self.kit.agreement.sites or request.get_header(MessageHeaderKey.ORIGIN) != site:
            self.journal(f"refused a message from {site!r}, which is no site of this federation")
            return make_reply(ReturnCode.UNAUTHENTICATED, "no site of this federation")
        sessions = [str(request.get_header(CellMessageHeaderKeys.TOKEN))]
        login = self.manager.name_to_clients.get(site)
        if login is not None and login.token != self.logins.get(site):  # often the only sign of a copy of a kit
            self.logins[site] = login.token
            sessions.insert(0, login.token)
        return make_reply(ReturnCode.OK, body=self.mailbox.answer(site, sessions, request.payload))

    def work(self) -> None:
        """Run the coordinator."""
        from factorized_fl.silo.coordinator import Coordinator  # imports PyTorch, which a site's process does without

        Coordinator(self.kit, self.mailbox, self.journal).work()


class SiteComponent(_Component):
    """A site's connection to the coordinator."""

    def connect(self, engine: Any) -> None:
        """Keep FLARE's connection."""
        self.cell = engine.cell or engine.client.cell

    def ask(self, question: bytes, seconds: float) -> bytes:
        """The coordinator's answer; raises Unreachable if there is none within so many seconds."""
        request = new_cell_message({}, question)
        reply = self.cell.send_request(
            channel=CHANNEL, topic=TOPIC, target=FQCN.ROOT_SERVER, request=request, timeout=seconds, optional=True
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise Unreachable(f"FLARE says {code}")
        if not isinstance(reply.payload, bytes | bytearray | memoryview):
            raise Unreachable("its answer is not a message of this federation")
        return bytes(reply.payload)

    def work(self) -> None:
        """Run the site's agent."""
        Agent(self.kit, self.journal, self).work()
