"""The two components that FLARE runs: a gateway in the coordinator's process, an agent in each site's.

FLARE gives them an authenticated, encrypted line; they carry messages over it and know nothing of what these mean.
Sites ask, the coordinator answers: a site opens no port and obeys no job.
"""

import os
import threading
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.defs import CellMessageHeaderKeys, new_cell_message

from factorized_fl import __version__
from factorized_fl.silo.coordinator import Coordinator
from factorized_fl.silo.finish import end_with_parent, finish
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.mailbox import HOLD, Mailbox
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.plan import Kit, read_kit
from factorized_fl.silo.preflight import find_trouble
from factorized_fl.silo.status import write_status
from factorized_fl.silo.supervise import REFUSED_SITE
from factorized_fl.silo.transport import gate
from factorized_fl.silo.transport.gate import CHANNEL, TOPIC

gate.close()  # FLARE imports this module while it reads its configuration, before it opens a line

FAREWELL = 60.0  # seconds that a finished coordinator stays for sites that have not heard of it
_RETRY = 0.5


class Refused(Exception):
    """The coordinator wants nothing of this site as it is."""


class _Component(FLComponent, ABC):  # type: ignore[misc]
    """Starts one thread when FLARE is up, and ends the process with it or with the supervisor."""

    def __init__(self, kit: str) -> None:
        super().__init__()
        self.kit: Kit = read_kit(Path(kit))
        self.journal = Journal(self.kit)
        self.started = False
        gate.listen(self.journal)
        end_with_parent(os.getppid())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE tells what happens; only its start matters here."""
        if event_type == EventType.SYSTEM_START and not self.started:
            self.started = True
            self.connect(fl_ctx.get_engine())
            threading.Thread(target=self._run, daemon=True).start()

    @abstractmethod
    def connect(self, engine: Any) -> None:
        """Take hold of FLARE's line."""

    @abstractmethod
    def work(self) -> None:
        """What the thread does; when it returns, this party is done."""

    def _run(self) -> None:
        try:
            self.work()
        except Refused as error:
            self.journal(str(error))
            write_status(self.kit, str(error))
            os._exit(REFUSED_SITE)
        except BaseException as error:
            try:
                self.journal(f"stopped by an error, will be started again: {error}")
                traceback.print_exc()
            finally:  # even if the disk is full
                os._exit(1)
        os._exit(0)


class Gateway(_Component):
    """The coordinator's end of every line."""

    def connect(self, engine: Any) -> None:
        """Listen to sites."""
        self.mailbox = Mailbox(self.kit.plan.id, self.kit.plan.sites, self.journal, self.kit.agreement)
        self.manager = engine.server.client_manager
        self.logins: dict[str, str] = {}
        engine.server.cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self.exchange)

    def exchange(self, request: Any) -> Any:
        """A site's question. FLARE has verified the certificate, the token, and that both belong to this name."""
        site = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        if site not in self.kit.plan.sites or request.get_header(MessageHeaderKey.ORIGIN) != site:
            self.journal(f"refused a message from {site!r}, who is no site of this federation")
            return make_reply(ReturnCode.UNAUTHENTICATED, "no site of this federation")
        self._recognise(site, str(request.get_header(CellMessageHeaderKeys.TOKEN)))
        try:
            if not isinstance(request.payload, bytes | bytearray | memoryview):
                raise BadMessage("it is not a message of this federation")
            news = unpack(request.payload, self.kit.plan.id, self.kit.plan.largest)
            reply = self.mailbox.exchange(site, news)
        except BadMessage as error:
            self.mailbox.note(site, f"refused its message, as {error}")
            reply = self.mailbox.spoil(site, str(error))
        return make_reply(ReturnCode.OK, body=pack(reply))

    def _recognise(self, site: str, token: str) -> None:
        """Every login gives a site's process a token; of a second place often nothing but that comes through."""
        login = self.manager.name_to_clients.get(site)
        if login is not None and login.token != self.logins.get(site):
            self.logins[site] = login.token
            self.mailbox.recognise(site, login.token)
        self.mailbox.recognise(site, token)

    def work(self) -> None:
        """All rounds, then a while for everybody to hear that it is over."""
        coordinator = Coordinator(self.kit, self.mailbox, self.journal)
        coordinator.run()
        coordinator.farewell(FAREWELL)
        time.sleep(_RETRY)  # for the last reply to leave
        self.journal("the federation is complete")


class Agent(_Component):
    """A site's end of its line, and the keeper of its trainer."""

    def connect(self, engine: Any) -> None:
        """Remember FLARE's line."""
        self.cell = engine.cell or engine.client.cell
        self.reachable = True
        self.twice = False
        self.about = {"agreement": self.kit.agreement, "version": __version__}

    def work(self) -> None:
        """Ask, do, answer, until the coordinator says that all is done."""
        trainer = Trainer(self.kit, self.journal)
        ready = Message("ready", self.kit.plan.id, {"train": trainer.hello().whole("train", low=1)})
        news = ready
        while True:
            reply = self.exchange(news)
            if reply is None:
                time.sleep(_RETRY)
                continue
            news = ready
            if reply.kind == "refused":
                raise Refused(why_refused(reply))
            if reply.kind == "end":
                finish(self.kit, self.journal, trainer)
                return
            if reply.kind != "wait":
                name = str(reply.fields.get("request", ""))[:60]
                write_status(self.kit, f"at work on {name}")
                news = trainer.ask(reply, lambda name=name: self.alive(name))  # type: ignore[misc]
            else:
                write_status(self.kit, "waiting for the coordinator")

    def alive(self, name: str) -> None:
        """A sign of life while the trainer works, to the coordinator and to whoever looks here."""
        write_status(self.kit, f"at work on {name}")
        self.exchange(Message("busy", self.kit.plan.id, {"request": name}), quiet=True)

    def exchange(self, news: Message, quiet: bool = False) -> Message | None:
        """One question to the coordinator; nothing if it cannot be reached or says what makes no sense."""
        reply = self.cell.send_request(
            channel=CHANNEL,
            topic=TOPIC,
            target=FQCN.ROOT_SERVER,
            request=new_cell_message({}, pack(replace(news, fields=news.fields | self.about))),
            timeout=HOLD + 10.0,
            optional=True,
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        try:
            if code != ReturnCode.OK:
                raise BadMessage(f"FLARE says {code}")
            answer = unpack(reply.payload, self.kit.plan.id, self.kit.plan.largest)
        except (BadMessage, TypeError) as error:
            if self.reachable and not quiet:
                self.journal(f"the coordinator is out of reach ({error}): trying again{self._advice()}")
                write_status(self.kit, "the coordinator is out of reach")
                self.reachable = False
            return None
        self._look_twice(answer)
        if not self.reachable:
            self.journal("the coordinator is back")
            self.reachable = True
        return answer

    def _advice(self) -> str:
        """With the way open, its answers may go to a copy of this kit, which is this site for FLARE, too."""
        return "" if find_trouble(self.kit) else "; if this site runs in a second place, stop one of them"

    def _look_twice(self, answer: Message) -> None:
        """Tell once if the coordinator hears this site from two places."""
        before, self.twice = self.twice, bool(answer.fields.get("twice"))
        if self.twice and not before:
            self.journal("this site runs in two places, with copies of one kit: stop one of them")


def why_refused(reply: Message) -> str:
    """What a site that the coordinator refuses can do about it."""
    theirs = str(reply.fields.get("version"))[:40]
    if theirs != __version__:
        return f"refused: this site runs factorized-fl {__version__}, the coordinator {theirs}: install the same"
    return "refused: this site's agreement (federation.toml) differs from the coordinator's: ask for its kit again"
