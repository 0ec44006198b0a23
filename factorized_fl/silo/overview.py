"""The part of the coordinator's status about the sites."""

from collections.abc import Mapping, Sequence

from factorized_fl.results.rundir import Record
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.memory import Memory
from factorized_fl.silo.sharing import shared_with


def site_rows(
    memory: Memory,
    mailbox: Mailbox,
    peers: Mapping[int, float],
    accuracy: Mapping[int, float],
    timing: Sequence[Record],
) -> list[Record]:
    """Returns a record for each site: connection, work, images, strikes, sharing, accuracy, bytes and what is due."""
    return [
        {
            "name": site,
            "connected": mailbox.connected(site) and not mailbox.closed,
            "doing": "quarantined" if memory.aside[k] else mailbox.doing(site),
            "images": memory.images(k, line.train),
            "strikes": int(memory.strikes[k]),
            "peers": peers.get(k),
            "shared": shared_with(timing, site).words,
            "accuracy": accuracy.get(k),
            "up_bytes": line.up,
            "down_bytes": line.down,
            "refused": line.bad,
            "waited_for": waited_for(memory, mailbox, k),
        }
        for k, (site, line) in enumerate(mailbox.lines.items())
    ]


def waited_for(memory: Memory, mailbox: Mailbox, k: int) -> bool:
    """Returns whether the coordinator waits for a site's answer, or before the first round for its connection."""
    site = mailbox.sites[k]
    if memory.aside[k] or site in mailbox.revoked or mailbox.ended:
        return False
    asked = any(line.request is not None for line in mailbox.lines.values())
    return mailbox.lines[site].request is not None if asked else not mailbox.connected(site)


def last_accuracies(records: Sequence[Record]) -> dict[int, float]:
    """Returns the last accuracy of each site that reports it."""
    return {record["client"]: record["accuracy"] for record in records if record["accuracy"] is not None}


def seconds_left(timing: Sequence[Record], rounds: int) -> float | None:
    """Returns the seconds for so many rounds, at the average of those that are done; None before the first."""
    return rounds * sum(line["seconds"] for line in timing) / len(timing) if timing else None


def what_helps(declined: Sequence[str], enough: int) -> str:
    """Returns why a round does not progress and what the operator can do; `declined` are the sites that refused it."""
    if not declined:
        return f"waiting: a quorum of {enough} needs a site readmitted"
    names = ", ".join(declined)
    return f"waiting: {names} refused this round: exclude the site that caused it, or readmit {names} to ask again"
