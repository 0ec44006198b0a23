"""The numbers of an audit: areas under ROC curves and shares, each with a 95% interval and its value by chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

_LEVEL = 0.95
Scores = np.ndarray  # one attack score for each example; more means "member"


@dataclass(frozen=True)
class Measure:
    """One result of an attack."""

    value: float
    low: float
    high: float
    chance: float
    count: int  # of the examples, updates or clients that were attacked

    @property
    def above_chance(self) -> bool:
        """Return whether the interval lies above chance."""
        return self.low > self.chance


def area(members: Scores, others: Scores) -> float:
    """Return the probability that a member has a higher score than another example; equal scores count half."""
    ranks = rankdata(np.concatenate([members, others]))
    return float((ranks[: len(members)].sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))


def area_variance(members: Scores, others: Scores) -> float:
    """Return the variance of `area` over examples (DeLong, DeLong and Clarke-Pearson 1988)."""
    if len(members) < 2 or len(others) < 2:
        return 0.25
    both = rankdata(np.concatenate([members, others]))
    of_members = (both[: len(members)] - rankdata(members)) / len(others)
    of_others = 1 - (both[len(members) :] - rankdata(others)) / len(members)
    return float(of_members.var(ddof=1) / len(members) + of_others.var(ddof=1) / len(others))


def mean_area(scores: Mapping[int, tuple[Scores, Scores]]) -> Measure:
    """Return the mean area over clients; `scores` are those of each client's members and of its other examples."""
    areas = [area(*pair) for pair in scores.values()]
    error = float(np.sqrt(sum(area_variance(*pair) for pair in scores.values()))) / len(areas)
    margin = float(norm.ppf((1 + _LEVEL) / 2)) * error
    mean = float(np.mean(areas))
    count = sum(len(members) + len(others) for members, others in scores.values())
    return Measure(mean, max(0.0, mean - margin), min(1.0, mean + margin), 0.5, count)


def share(successes: int, count: int, chance: float) -> Measure:
    """Return a share with its Wilson interval."""
    if not count:
        return Measure(chance, 0.0, 1.0, chance, 0)
    z = float(norm.ppf((1 + _LEVEL) / 2))
    centre = (successes + z * z / 2) / (count + z * z)
    margin = z * np.sqrt(successes * (count - successes) / count + z * z / 4) / (count + z * z)
    return Measure(successes / count, max(0.0, float(centre - margin)), min(1.0, float(centre + margin)), chance, count)


def found_at(scores: Mapping[int, tuple[Scores, Scores]], false_share: float) -> Measure:
    """Return the share of members above the threshold that so large a share of the other examples exceeds."""
    members, others = (np.concatenate(side) for side in zip(*scores.values(), strict=True))
    threshold = np.quantile(others, 1 - false_share, method="higher")
    return share(int((members > threshold).sum()), len(members), false_share)


def agreement(right: Sequence[bool], chance: float) -> Measure:
    """Return the share of right guesses."""
    return share(sum(right), len(right), chance)
