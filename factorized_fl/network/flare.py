"""The two components that FLARE runs: a gateway in the coordinator's process, an agent in each site's.

FLARE gives them an authenticated, encrypted line; they carry messages over it and know nothing of what these mean.
Sites ask, the coordinator answers: a site opens no port and obeys no job.
"""

import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
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
from factorized_fl.network.coordinator import Coordinator
from factorized_fl.network.finish import end_with_parent, finish
from factorized_fl.network.journal import Journal
from factorized_fl.network.mailbox import HOLD, Mailbox
from factorized_fl.network.messages import BadMessage, Message, pack, unpack
from factorized_fl.network.plan import Kit, read_kit
from factorized_fl.network.preflight import find_trouble
from factorized_fl.network.status import write_status
from factorized_fl.network.supervise import REFUSED_SITE
from factorized_fl.network.trainer import REFUSED, read_frame, write_frame

CHANNEL, TOPIC = "factorized_fl", "exchange"
FAREWELL = 60.0  # seconds that a finished coordinator stays for sites that have not heard of it
_RETRY = 0.5
_ALIVE = 2.0  # seconds between signs of life while a site trains


class Refused(Exception):
    """The coordinator wants nothing of this site as it is."""


class _Component(FLComponent, ABC):  # type: ignore[misc]
    """Starts one thread when FLARE is up, and ends the process with it or with the supervisor."""

    def __init__(self, kit: str) -> None:
        super().__init__()
        self.kit: Kit = read_kit(Path(kit))
        self.journal = Journal(self.kit)
        end_with_parent(os.getppid())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE tells what happens; only its start matters here."""
        if event_type == EventType.SYSTEM_START:
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
            self.journal(f"stopped by an error, will be started again: {error}")
            traceback.print_exc()
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
            self.journal(f"{site}: refused its message, as {error}")
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


class Trainer:
    """The trainer's process as the agent sees it: asked, waited for, started again when it dies."""

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.journal = kit, journal
        self.pause = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def hello(self, meanwhile: Callable[[], None] = lambda: None) -> Message:
        """Start the process until it says that it is ready."""
        while True:
            time.sleep(self.pause)
            self.pause = min(30.0, 2 * self.pause + 0.5)
            with (self.kit.logs / "trainer.txt").open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "factorized_fl.network.trainer", str(self.kit.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            (self.kit.path / "trainer.pid").write_text(str(self.process.pid))
            self.frames: queue.Queue[bytes | None] = queue.Queue()
            threading.Thread(target=self._listen, args=(self.process, self.frames), daemon=True).start()
            if (hello := self._next(meanwhile)) is not None:
                return hello
            if (code := self.process.wait()) != REFUSED:  # else it has said why
                self.journal(f"the trainer died (exit code {code}): starting another, log/trainer.txt says more")

    def ask(self, request: Message, meanwhile: Callable[[], None]) -> Message:
        """The trainer's answer, from as many processes as it takes; `meanwhile` is called every few seconds."""
        while True:
            if self.process is None or self.process.poll() is not None:
                self._mourn()
                self.hello(meanwhile)
            assert self.process is not None
            assert self.process.stdin is not None
            try:
                write_frame(self.process.stdin, pack(request))
                answer = self._next(meanwhile)
            except OSError:
                answer = None
            if answer is not None:
                self.pause = 0.0
                return answer
            self._mourn()

    def _mourn(self) -> None:
        if self.process is not None:
            code = self.process.wait()
            self.journal(f"the trainer died (exit code {code}): starting another from the last round on disk")
            self.process = None

    def _next(self, meanwhile: Callable[[], None]) -> Message | None:
        while True:
            try:
                content = self.frames.get(timeout=_ALIVE)
            except queue.Empty:
                meanwhile()
                continue
            return None if content is None else unpack(content, self.kit.plan.id, 2**62)

    @staticmethod
    def _listen(process: "subprocess.Popen[bytes]", frames: "queue.Queue[bytes | None]") -> None:
        assert process.stdout is not None
        while (content := read_frame(process.stdout)) is not None:
            frames.put(content)
        frames.put(None)

    def close(self) -> None:
        """Let it go."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
