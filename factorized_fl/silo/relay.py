"""The coordinator's part in the exchange of the sites' secret: it relays messages that it cannot read."""

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Event

from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.secret import read_table_of

Ask = Callable[[Mapping[str, Message]], dict[str, Message]]  # posts requests and returns the answers


class SecretRelay:
    """The sites that report to have the secret, and the requests by which the others get it."""

    def __init__(self, federation: str, log: Callable[[str], None]) -> None:
        self.federation, self.log = federation, log
        self.marks: dict[str, str] = {}  # the marks of the secrets that sites have
        self._asked = 0

    def hand_over(self, sites: Sequence[str], ask: Ask, own: Callable[[str, str], None]) -> None:
        """Lets sites without the secret get it from one that has it, or from the first, which makes it.

        `own` is called with a site and a reason if its answer is not in order.
        """
        offers = {}
        for site, answer in ask({s: self._message("offer") for s in sites if s not in self.marks}).items():
            try:
                if answer.text("mark"):
                    self._note(site, answer)
                else:
                    offers[site] = read_table_of(answer.payload)[site]
            except (BadMessage, KeyError) as error:
                own(site, f"its offer is not in order ({error})")
        if not offers:
            return
        givers = [site for site in sites if site in self.marks] or sorted(offers)[:1]
        giver = givers[0]
        wanted = {site: offer for site, offer in offers.items() if site != giver}
        given = ask({giver: self._message("wrap", wanted)}).get(giver)
        if given is None:
            return
        try:
            wrapped = read_table_of(given.payload)
            self._note(giver, given)
        except BadMessage as error:
            own(giver, f"it did not hand the secret over ({error})")
            return
        takes = {site: self._message("take", {site: wrapped[site]}) for site in wanted if site in wrapped}
        for site, answer in ask(takes).items():
            try:
                self._note(site, answer)
            except BadMessage as error:
                own(site, f"it did not take the secret ({error})")

    def wait_for(
        self, enough: int, sites: Sequence[str], ask: Ask, own: Callable[[str, str], None], stop: Event
    ) -> None:
        """Hands the secret over until so many of the sites have it, or until `stop` is set."""
        while not stop.is_set():
            self.hand_over(sites, ask, own)
            if len(self.marks.keys() & set(sites)) >= enough:
                return
            stop.wait(0.5)

    def _note(self, site: str, answer: Message) -> None:
        mark = answer.text("mark", 8)
        if not mark:
            raise BadMessage("it has no secret")
        self.marks[site] = mark
        self.log(f"{site} has the sites' secret, mark {mark}")
        if len(set(self.marks.values())) > 1:
            self.log("the sites have different secrets: stop, and remove the file 'secret' from all their kits")

    def _message(self, step: str, table: Mapping[str, object] | None = None) -> Message:
        self._asked += 1
        fields = {"request": f"secret-{step}-{self._asked}", "step": step}
        return Message("secret", self.federation, fields, json.dumps(table or {}).encode())
