"""Norms of encrypted updates: a site that refused an aggregate estimates them, which can show the sender at fault.

Every update carries tags, which its sender computed from its numbers before it knew of any question. The coordinator
sends the tags of each update in the refused aggregate to the site, and all other numbers as zeros. The site estimates
each norm from the tags. It answers for its last refused download only, once for each sender, and with one digit,
because answers about tags would otherwise reveal the masks that protect aggregates.
"""

from typing import TYPE_CHECKING

from factorized_fl.core.ledger import CIPHERTEXTS
from factorized_fl.core.payload import encode
from factorized_fl.protect.ckks import BadCiphertext
from factorized_fl.protect.client import Sealer
from factorized_fl.silo.checks import read_tensors
from factorized_fl.silo.messages import BadMessage, Message

if TYPE_CHECKING:
    from factorized_fl.silo.coordinator import Coordinator

NORM = "norm"  # the kind of these requests
_DEADLINE = 60.0  # seconds for a site to decrypt the tags of one update


class Refusal:
    """A site's refusal of a download: the round, and the senders of the norms that the site has estimated since."""

    def __init__(self, round_number: int = 0) -> None:
        self.round, self._estimated = round_number, set[int]()

    def estimate(self, request: Message, sealer: Sealer | None, rounds: int) -> float:
        """Return the norm of one update in the refused aggregate; raises BadMessage if it cannot be estimated."""
        if sealer is None or not self.round or request.whole("round") != self.round:
            raise BadMessage("this site refused no aggregate of that round")
        seat = request.whole("seat", high=sealer.count - 1)
        sent = request.whole("sent", low=1, high=rounds)
        if seat in self._estimated:
            raise BadMessage("this site has estimated that norm already")
        self._estimated.add(seat)
        tensors = read_tensors(request.payload, {CIPHERTEXTS: sealer.due[CIPHERTEXTS]})
        try:
            return sealer.norm(tensors[CIPHERTEXTS], seat, sent)
        except BadCiphertext as error:
            raise BadMessage(str(error)) from None


def ask_norms(coordinator: "Coordinator") -> None:
    """Ask each site that refused its aggregate for the norms of the updates in it, and write these to the journal."""
    if coordinator.mixing is None:
        return
    for k in [k for k, update in coordinator.good.items() if update.declined]:
        weights = coordinator.mixing.weights.rows([k])[0]
        for j in weights.nonzero().flatten().tolist():
            if j != k:
                _ask(coordinator, k, j)


def _ask(coordinator: "Coordinator", k: int, j: int) -> None:
    memory, receiver = coordinator.memory, coordinator.sites[k]
    assert memory.blind is not None
    row = memory.server.stack[CIPHERTEXTS][j]
    sent = memory.blind.round_of(row)
    if not sent:  # the site has sent nothing: its share is that of the common start
        return
    about = {"round": coordinator.round, "seat": j, "sent": sent}
    fields = {"request": f"norm-{coordinator.round}-{coordinator.sites[j]}", **about}
    request = Message(NORM, coordinator.agreement.id, fields, encode({CIPHERTEXTS: memory.blind.tags(row)}))
    deadline = min(_DEADLINE, coordinator.agreement.deadline)
    answer = coordinator.collect({receiver: request}, 0, deadline).get(receiver)
    which = f"the norm of its update of round {sent}"
    if answer is None:
        coordinator.say(j, f"{receiver} did not answer with {which}")
        return
    try:
        if (norm := answer.number("norm")) is None:
            coordinator.say(j, f"{receiver} cannot estimate {which}: {answer.text('reason')}")
        else:
            coordinator.say(j, f"{receiver} estimates {which} as {norm:g}")
    except BadMessage as error:
        coordinator.strike(k, str(error))
