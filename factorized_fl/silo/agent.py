"""A site's side of the transport: it polls the coordinator for requests and lets the trainer answer them."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

from factorized_fl import __version__
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.audit import Audit
from factorized_fl.silo.finish import finish
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.mailbox import HOLD
from factorized_fl.silo.messages import BadMessage, Message, pack, unpack
from factorized_fl.silo.pieces import Courier, Pace
from factorized_fl.silo.preflight import connection_problem
from factorized_fl.silo.settings import site_limit
from factorized_fl.silo.status import write_status
from factorized_fl.silo.transport import CannotContinue, Line, Unreachable
from factorized_fl.silo.trial import is_trial

_RETRY = 0.5
_PATIENCE = HOLD + 10.0  # seconds to wait for an answer


class Agent:
    """Takes part in a federation until its end."""

    def __init__(self, kit: Kit, journal: Journal, line: Line) -> None:
        self.kit, self.journal, self.line = kit, journal, line
        self.reachable = True
        self.twice = False
        self.closed = False
        self.audit = Audit(kit)
        self.about: dict[str, Any] = {"version": __version__, "seat": kit.seat}
        if is_trial(kit):
            self.about["visit"] = True
        limit = site_limit(kit) * 1e6 / 8  # bytes per second
        self.courier = Courier(self._ask, kit.agreement.id, kit.agreement.largest, Pace(limit))

    def work(self) -> None:
        """Poll, train and answer until the coordinator reports the end; raises CannotContinue if refused."""
        trainer = Trainer(self.kit, self.journal)
        hello = trainer.hello()
        self.about["agreement"] = hello.fields.get("agreement")
        fields = {"train": hello.whole("train", low=1), "done": hello.fields.get("done", 0)}
        fields["terms"] = hello.fields.get("terms", {})
        ready = Message("ready", self.kit.agreement.id, fields)
        news = ready
        while True:
            reply = self.exchange(news)
            if reply is None:
                time.sleep(_RETRY)
                continue
            news = ready
            if reply.kind == "refused":
                theirs = str(reply.fields.get("version"))[:40]
                names = ", ".join(str(name) for name in reply.fields.get("differs", ()))
                what = f" in {names}" if names else ""
                why = f"this site's agreement (federation.toml) differs{what} from the coordinator's: ask for its kit"
                if reply.fields.get("revoked"):
                    why = "the authority has revoked this site"
                elif reply.fields.get("turned_away"):
                    why = "the coordinator found a message of this site invalid; its journal has the reason"
                elif theirs != __version__:
                    why = f"this site runs factorized-fl {__version__}, the coordinator {theirs}, and their agreements "
                    why += f"differ{what}: install the same version"
                self.audit("refused", words=why)
                raise CannotContinue(f"refused: {why}")
            if reply.kind == "end":
                self.audit("end")
                finish(self.kit, self.journal, trainer)
                return
            if reply.kind == "wait":
                closed = bool(reply.fields.get("closed"))
                if closed and not self.closed:
                    self.journal("the coordinator receives no visitors yet: after its last round, with --visitors")
                self.closed = closed
                write_status(self.kit, "waiting for the coordinator")
            else:
                name = str(reply.fields.get("request", ""))[:60]
                write_status(self.kit, f"at work on {name}")
                self.audit.message("received", reply, **{"from": COORDINATOR})
                news = trainer.ask(reply, partial(self.alive, name))
                self.audit.message("answered", news, to=COORDINATOR)
                if news.fields.get("result") == "trained" and reply.kind == "round":
                    ready = replace(ready, fields=ready.fields | {"done": news.fields["round"]})

    def alive(self, name: str) -> None:
        """Report to the coordinator and in the status that the trainer is at work on a request."""
        write_status(self.kit, f"at work on {name}")
        self.exchange(Message("busy", self.kit.agreement.id, {"request": name}), quiet=True)

    def _ask(self, message: Message) -> Message:
        """The reply to one message, large ones in pieces; each has `_PATIENCE` seconds."""
        agreement = self.kit.agreement
        return unpack(self.line.ask(pack(message), _PATIENCE), agreement.id, agreement.largest)

    def exchange(self, news: Message, quiet: bool = False) -> Message | None:
        """The coordinator's answer, None if it cannot be reached or its answer is not valid."""
        try:
            answer = self.courier.exchange(replace(news, fields=news.fields | self.about), self.about)
        except (BadMessage, Unreachable) as error:
            if self.reachable and not quiet:
                # The connection may work while answers go to a copy of this kit on another machine.
                hint = "" if connection_problem(self.kit) else "; if this site runs in a second place, stop one of them"
                self.journal(f"the coordinator is out of reach ({error}): trying again{hint}")
                write_status(self.kit, "the coordinator is out of reach")
                self.reachable = False
            return None
        before, self.twice = (
            self.twice,
            bool(answer.fields.get("twice")),
        )  # the coordinator receives messages from two places
        if self.twice and not before:
            self.journal("this site runs in two places, with copies of one kit: stop one of them")
        if not self.reachable:
            self.journal("the coordinator is back")
            self.reachable = True
        return answer
