"""Visitors of a finished federation: new sites that receive what a member would, without changing the federation.

A visitor trains one round by itself and sends its update, with which the method matches it like any other site. It
receives the mixed tensors, trains a second round with them, and keeps the result. Then the coordinator restores its
memory of before the visit.
"""

from functools import partial
from typing import TYPE_CHECKING

from factorized_fl.core.payload import encode
from factorized_fl.core.views import Tensors
from factorized_fl.silo.checks import Update, read_update
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.questions import ask_losses
from factorized_fl.silo.trial import ROUNDS_OF_A_TRIAL, receives_visitors

if TYPE_CHECKING:
    from factorized_fl.silo.coordinator import Coordinator

_LOOK = 0.2  # seconds


def receive_visitors(coordinator: "Coordinator") -> None:
    """Serves visitors until the coordinator is stopped, if it is to receive any; other sites learn of the end."""
    mailbox = coordinator.mailbox
    if not receives_visitors(coordinator.kit):
        return
    if coordinator.memory.blind is None:
        mailbox.receive_visitors()
    coordinator.log("all rounds are done: receives visitors until it is stopped")
    while not coordinator.stop.is_set():
        coordinator.tell()
        for k, site in enumerate(coordinator.sites):
            line = mailbox.lines[site]
            if line.visit and line.done < ROUNDS_OF_A_TRIAL and mailbox.connected(site):
                _receive(coordinator, k)
        coordinator.stop.wait(_LOOK)


def _receive(coordinator: "Coordinator", k: int) -> None:
    memory, site = coordinator.memory, coordinator.sites[k]
    before = {name: tensor.clone() for name, tensor in memory.tensors.items()}
    coordinator.say(k, "visits")
    try:
        first = _ask(coordinator, k, 1, {}, {})
        if first is None:
            return
        coordinator.learn_sizes()
        memory.keep(k, first.tensors, {})
        downloads, sent = memory.prepare(coordinator.config.rounds + 1, [k], partial(ask_losses, coordinator))
        share = downloads.from_others().get(k, 0.0)
        about = {"from_others": share, "peers": downloads.peers().get(k)}
        if _ask(coordinator, k, ROUNDS_OF_A_TRIAL, sent.get(k, {}), about) is None:
            return
        coordinator.mailbox.has_done(site, ROUNDS_OF_A_TRIAL)
        coordinator.say(k, f"has visited: {share:.1%} of its download came from other sites; its update is dropped")
    except BadMessage as error:
        coordinator.mailbox.turned_away.add(site)
        coordinator.say(k, f"is turned away, as {error}")
    finally:
        memory.load(before)
        memory.declared.pop(k, None)


def _ask(
    coordinator: "Coordinator", k: int, number: int, tensors: Tensors, about: dict[str, float | None]
) -> Update | None:
    """The visitor's update after a round of its trial, None if it is gone."""
    site, agreement = coordinator.sites[k], coordinator.agreement
    fields = {"request": f"round-{number}", "round": number, "download": bool(tensors), "models": 1, **about}
    request = Message("round", agreement.id, fields, encode(tensors) if tensors else b"")
    answers = coordinator.collect({site: request}, 0, agreement.deadline, coordinator.tell, from_progress=True)
    if site not in answers:
        return None
    return read_update(answers[site], coordinator.memory.server.expected(k, tensors))
