"""Recovery of a coordinator whose run is lost, or older than that of the sites: it continues from their last uploads.

A site reports its round and keeps its last upload. The coordinator accepts a round that a quorum has reached, asks
every site for its last upload, and continues with the next round.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from factorized_fl.core.views import Tensors
from factorized_fl.silo.checks import Update, read_update
from factorized_fl.silo.messages import BadMessage, Message

if TYPE_CHECKING:
    from factorized_fl.silo.coordinator import Coordinator

HELD = 2  # rounds that a site can answer again from disk
REQUEST = "last"
REJOIN = 3.0  # seconds for the sites to connect after a restart


def reached(rounds: Iterable[int], quorum: int, limit: int) -> int:
    """Returns the last round that a quorum of sites has done, at most `limit`; a single site cannot raise it."""
    done = sorted(rounds, reverse=True)
    return min(done[quorum - 1], limit) if len(done) >= quorum else 0


def last_uploads(
    answers: Mapping[int, Message], expected: Callable[[int], Tensors], log: Callable[[int, str], None]
) -> dict[int, Update]:
    """Returns the checked uploads among the answers; `log` is called with the reason for each that is left out."""
    found = {}
    for k, answer in answers.items():
        if answer.fields.get("result") == "none":
            continue
        try:
            found[k] = read_update(answer, expected(k))
        except BadMessage as error:
            log(k, f"its last upload is not used, as {error}")
    return found


def continue_from_sites(coordinator: "Coordinator", done: int) -> int:
    """Returns the round after which the federation continues: `done`, unless a quorum of sites is far beyond it."""
    rounds, agreement, mailbox = coordinator.config.rounds, coordinator.agreement, coordinator.mailbox
    if done == rounds:
        return done
    members = [site for site in coordinator.sites if site not in mailbox.revoked]
    until = time.monotonic() + REJOIN
    while not coordinator.stop.is_set() and time.monotonic() < until:
        there = sum(mailbox.connected(site) for site in members)
        if there == len(members):
            break
        coordinator.tell(f"waiting for sites: {there} of {len(members)} are here")
        coordinator.stop.wait(0.1)
    theirs = reached((line.done for line in mailbox.lines.values()), agreement.needed, rounds)
    if theirs <= done + (HELD if done else HELD - 1):
        return done
    if coordinator.memory.blind is not None:  # uploads are encrypted for their own round
        coordinator.log(
            f"the sites' last round is {theirs}: with encryption, restore this coordinator's run from a copy"
        )
        return done
    coordinator.log(f"this coordinator's last round is {done}, the sites' is {theirs}: continuing from their uploads")
    request = Message(REQUEST, agreement.id, {"request": f"{REQUEST}-{theirs}"})
    ks = {site: k for k, site in enumerate(coordinator.sites) if not coordinator.memory.aside[k]}
    requests = dict.fromkeys(ks, request)
    found = coordinator.collect(requests, agreement.needed, agreement.deadline, coordinator.tell)
    coordinator.learn_sizes()
    answers = {ks[site]: answer for site, answer in found.items()}
    server = coordinator.memory.server
    for k, update in last_uploads(answers, lambda k: server.expected(k, {}), coordinator.say).items():
        coordinator.memory.keep(k, update.tensors, {})
    coordinator.save(theirs)
    return theirs
