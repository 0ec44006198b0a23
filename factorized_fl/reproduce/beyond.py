"""What our own method has to show: that it helps everybody, and that it finds the right peers."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.collection import Collection

OWN = "factorized-peers"
ROWS = (OWN, f"{OWN}+not-settled")
SETTLED = ("stand-alone+settled", "factorized-fl-beta+settled")  # what settling alone does for others
# Where the Stand-Alone runs are that it is held against, setting by setting: the study and its setting.
ALONE = {
    "domains": ("domains", "domains"),
    "domains-unequal": ("beyond", "domains-unequal"),
    "domains-dirichlet": ("beyond", "domains-dirichlet"),
    "domains-random-labels": ("domains", "domains"),
}
UNDISTURBED = {"domains-random-labels": "domains"}  # the same without the disturbance, client by client


@dataclass(frozen=True)
class Helped:
    """Points that clients gained over another cell: the mean and the least."""

    row: str
    setting: str
    over: str
    seeds: tuple[int, ...]
    mean: float
    least_domain: float
    least_client: float
    harmed: int  # clients that lost more than a point
    clients: int
    own_weight: float  # on one's own domain, oneself included, from the second round on


def helped(found: Collection) -> list[Helped]:
    """Of all settings that were run with both."""
    return list(_helped(found))


def _helped(found: Collection) -> Iterator[Helped]:
    for setting, place in ALONE.items():
        for row in ROWS:
            ours = found.of("beyond", setting, row)
            if one := _compare(row, setting, "Stand-Alone", ours, found.of(*place, "stand-alone")):
                yield one
            settled = found.of("beyond", setting, "stand-alone+settled")
            if one := _compare(row, setting, "Stand-Alone (statistics settled)", ours, settled):
                yield one
            undisturbed = found.of("beyond", UNDISTURBED.get(setting, ""), row)
            if one := _compare(row, setting, "the same without random labels", ours, undisturbed):
                yield one


def _compare(row: str, setting: str, over: str, ours: Sequence[Result], others: Sequence[Result]) -> Helped | None:
    theirs = {result.seed: result for result in others}
    pairs = [(result, theirs[result.seed]) for result in ours if result.seed in theirs]
    if not pairs:
        return None
    gains = [gain for one, other in pairs for gain in _gains(one, other)]
    by_domain: dict[str, list[float]] = {}
    for domain, gain in gains:
        by_domain.setdefault(domain, []).append(gain)
    points = [gain for _, gain in gains]
    return Helped(
        row=row,
        setting=setting,
        over=over,
        seeds=tuple(one.seed for one, _ in pairs),
        mean=statistics.fmean(points),
        least_domain=min(map(statistics.fmean, by_domain.values())),
        least_client=min(points),
        harmed=sum(gain < -1 - 1e-9 for gain in points),
        clients=len(points),
        own_weight=statistics.fmean(own_domain_weight(one) for one, _ in pairs),
    )


def _gains(one: Result, other: Result) -> list[tuple[str, float]]:
    """Domain and gain in points of every client whose labels are not drawn at random: those are the last."""
    count = len(one.domains) - one.configuration["scrambled"]
    both = zip(one.domains, one.accuracies(), other.accuracies(), strict=True)
    return [(domain, 100 * (a - b)) for domain, a, b in both][:count]


def own_domain_weight(result: Result) -> float:
    """Weight that clients give to themselves and to others of their domain, the mean over rounds."""
    mixing = result.record["mixing"]
    return statistics.fmean(map(sum, zip(mixing["own"], mixing["own_domain"], strict=True)))


def matching_bytes(result: Result) -> float:
    """What a client sends in a round to be matched by, with framing: what goes up and never comes down."""
    sent = result.record["bytes"]
    return (sent["up_per_round"][-1] - sent["down_per_round"][-1]) / len(result.domains)
