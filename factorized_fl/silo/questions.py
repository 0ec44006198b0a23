"""Questions of the coordinator to single sites outside the exchange of a round: losses of candidates, final tests."""

import math
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b

from factorized_fl.core.ledger import Traffic
from factorized_fl.core.payload import encode
from factorized_fl.core.views import Tensors
from factorized_fl.results.schema import Record
from factorized_fl.silo.agreement import Agreement
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.updates import read_result
from factorized_fl.simulate.rounds import make_record

_LOSS_DEADLINE = 60.0  # seconds for a site to try one model on its held-out images


class Questions:
    """Asks sites through the mailbox; a malformed answer is a strike against the site."""

    def __init__(
        self, agreement: Agreement, mailbox: Mailbox, stop: threading.Event, strike: Callable[[int, str], None]
    ) -> None:
        self.agreement, self.mailbox, self.stop, self.strike = agreement, mailbox, stop, strike

    def losses(self, round_number: int, k: int, candidates: Tensors) -> list[float]:
        """Site k's loss with each candidate, [M, ...]; all NaN as soon as the site leaves one out."""
        losses: list[float] = []
        for tensors in zip(*candidates.values(), strict=True):
            loss = self._loss(round_number, k, dict(zip(candidates, tensors, strict=True)))
            if loss is None:
                return [math.nan] * len(next(iter(candidates.values())))
            losses.append(loss)
        return losses

    def _loss(self, round_number: int, k: int, tensors: Tensors) -> float | None:
        """Site k's loss on its held-out images with these tensors: None without an answer, NaN if they diverged."""
        payload = encode(tensors)
        name = f"loss-{round_number}-{blake2b(payload, digest_size=8).hexdigest()}"
        site = self.agreement.sites[k]
        fields = {"request": name, "round": round_number}
        self.mailbox.post({site: Message("loss", self.agreement.id, fields, payload)})
        answers = self.mailbox.collect({site}, 0, min(_LOSS_DEADLINE, self.agreement.deadline), self.stop)
        if site not in answers or "loss" not in answers[site].fields:
            return None
        try:
            loss = answers[site].number("loss")
        except BadMessage as error:
            self.strike(k, str(error))
            return None
        return math.nan if loss is None else loss

    def tests(self, round_number: int, ks: Sequence[int]) -> list[Record]:
        """The test results of these sites after the last round, as lines of the metrics."""
        ask = {self.agreement.sites[k] for k in ks}
        fields = {"request": f"test-{round_number}", "round": round_number}
        self.mailbox.post({site: Message("test", self.agreement.id, fields) for site in ask})
        answers = self.mailbox.collect(ask, 0, self.agreement.deadline, self.stop) if ask else {}
        records = []
        for site, answer in answers.items():
            k = self.agreement.sites.index(site)
            try:
                records.append(make_record(round_number, k, site, read_result(answer), None, Traffic()))
            except BadMessage as error:
                self.strike(k, str(error))
        return records
