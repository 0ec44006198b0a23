"""A coordinator whose run is older than its sites', or lost: it continues from what the sites hold.

A site tells its round and holds its last upload. The coordinator believes a round that a quorum has reached, asks every
site for its last upload, and continues with the round after.
"""

from collections.abc import Callable, Iterable, Mapping

from factorized_fl.core.views import Tensors
from factorized_fl.silo.checks import Update, read_update
from factorized_fl.silo.messages import BadMessage, Message

HELD = 2  # rounds that a site can answer again from disk
REQUEST = "last"


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
