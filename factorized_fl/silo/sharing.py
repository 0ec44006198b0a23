"""How much a site received from the other sites: in words, for the journal, the status and the model card."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEGLIGIBLE = 1e-3  # a smaller share of the other sites counts as nothing
PATIENCE = 3  # rounds after which the coordinator warns if no site has received anything


@dataclass(frozen=True)
class Shared:
    """The number of a site's rounds with a contribution of other sites, and their average share."""

    rounds: int  # in which the site received a download
    some: int  # number of these with a contribution of other sites
    mean: float  # average share of the other sites over all rounds with a download

    @property
    def words(self) -> str:
        """Returns a sentence without its full stop."""
        if not self.rounds:
            return "received no download yet"
        if not self.some:
            return f"received nothing from other sites in {self.rounds} rounds"
        return f"received something from other sites in {self.some} of {self.rounds} rounds, {self.mean:.1%} on average"


def shared_with(timing: Iterable[Mapping[str, Any]], site: str) -> Shared:
    """Returns how much a site received, from the lines of timing.jsonl of a coordinator or of the site itself."""
    shares = [line["from_others"][site] for line in timing if line.get("from_others", {}).get(site) is not None]
    some = sum(share >= NEGLIGIBLE for share in shares)
    return Shared(len(shares), some, sum(shares) / len(shares) if shares else 0.0)


def warn_if_nothing_is_shared(timing: Sequence[Mapping[str, Any]], method: str) -> str:
    """Returns a warning if no site has received anything from another until now, an empty text otherwise."""
    shares = [share for line in timing for share in line.get("from_others", {}).values()]
    if not shares or max(shares) >= NEGLIGIBLE:
        return ""
    return (
        f"WARNING: after {len(timing)} rounds no site has received anything from another: {method} finds no two sites "
        "alike, so each trains as it would alone. Consider another method or threshold in a new federation"
    )
