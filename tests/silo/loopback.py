"""A federation within one process, without encryption: each site has a thread, and every message travels as bytes."""

import threading
from collections.abc import Mapping
from typing import Protocol

from factorized_fl import __version__
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.coordinator import Coordinator
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import Message, pack, unpack


class Participant(Protocol):
    """A site in this process."""

    train_images: int

    def answer(self, request: Message) -> Message:
        """The answer to a request of the coordinator."""


class Loopback:
    """A federation in one process: the coordinator in the caller's thread, each site in a thread of its own."""

    hold = 0.2  # seconds that a question is held open

    def __init__(self, kits: Mapping[str, Kit], sites: Mapping[str, Participant]) -> None:
        self.kits, self.sites = kits, dict(sites)
        self.journal: list[str] = []
        self.kit = kits[COORDINATOR]
        terms = self.kit.agreement
        self.mailbox = Mailbox(terms.id, terms.sites, self.journal.append, self.kit.mark, largest=terms.largest)
        self.coordinator = Coordinator(self.kit, self.mailbox, self.journal.append)

    def run(self) -> bool:
        """Run to the end; true if all rounds are complete."""
        threads = [self.start(site) for site in self.sites]
        complete = self.coordinator.run()
        for thread in threads:
            thread.join(30)
        return complete

    def start(self, site: str) -> threading.Thread:
        """Let one site take part, in a thread of its own."""
        thread = threading.Thread(target=self._take_part, args=(site,), daemon=True)
        thread.start()
        return thread

    def ask(self, site: str, news: Message) -> Message:
        """The coordinator's answer to a message of a site."""
        about = {"agreement": self.kits[site].mark, "version": __version__}
        question = pack(Message(news.kind, news.federation, news.fields | about, news.payload))
        answer = self.mailbox.answer(site, (), question, self.hold)
        return unpack(answer, self.kit.agreement.id, self.kit.agreement.largest)

    def _take_part(self, site: str) -> None:
        news = self.ready(site)
        while (reply := self.ask(site, news)).kind != "end":
            news = self.ready(site) if reply.kind == "wait" else self.sites[site].answer(reply)

    def ready(self, site: str) -> Message:
        """What a site says while it has no answer."""
        party = self.sites[site]
        done = getattr(getattr(party, "site", party), "done", 0)
        return Message("ready", self.kit.agreement.id, {"train": party.train_images, "done": done})
