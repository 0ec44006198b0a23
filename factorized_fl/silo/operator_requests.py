"""Requests of a federation's operator to the coordinator: readmit, exclude, and revocations by the authority."""

from typing import TYPE_CHECKING

from factorized_fl.silo import control
from factorized_fl.silo.keys import read_notice

if TYPE_CHECKING:
    from factorized_fl.silo.coordinator import Coordinator


def heed_revocations(coordinator: "Coordinator") -> bool:
    """Quarantines sites that the authority revoked; returns whether the download must be computed again."""
    notice = read_notice(coordinator.kit)
    revoked = set(notice.revoked) - coordinator.mailbox.revoked if notice else set()
    for k in (coordinator.sites.index(site) for site in sorted(revoked & {*coordinator.sites})):
        coordinator.memory.set_aside(k)
        coordinator.say(k, "revoked by the authority; it gets nothing more, and its tensors are sent to no site")
    if revoked:
        coordinator.mailbox.revoke(revoked)
        save_quarantine(coordinator)
    return bool(revoked)


def carry_out(coordinator: "Coordinator") -> bool:
    """Carries out the operator's requests; returns whether the download must be computed again."""
    revoked = heed_revocations(coordinator)
    wishes = control.take(coordinator.kit)
    if wishes is None:
        coordinator.log(f"{control.CONTROL} cannot be read and is ignored: ask again with `ffl federation`")
        control.done(coordinator.kit)
        return revoked
    readmitted, excluded = (
        [k for k, site in enumerate(coordinator.sites) if site in wishes.get(kind, ())]
        for kind in ("readmit", "exclude")
    )
    for k in readmitted:
        coordinator.memory.readmit(k)
        coordinator.declined.discard(k)
        coordinator.refused[k] = 0
        coordinator.say(k, "readmitted by the operator")
    for k in excluded:
        coordinator.memory.set_aside(k)
        coordinator.say(k, "excluded by the operator; its tensors are no longer sent to any site")
    if wishes:
        save_quarantine(coordinator)
        control.done(coordinator.kit)
    return bool(excluded) or revoked


def save_quarantine(coordinator: "Coordinator") -> None:
    """Saves the names of the quarantined sites, in case this coordinator dies within the round."""
    control.remember_aside(
        coordinator.kit, [site for k, site in enumerate(coordinator.sites) if coordinator.memory.aside[k]]
    )
