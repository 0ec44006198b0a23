"""Matching of the classes of different clients: evidence for each pair, and a joint assignment of all classes.

The evidence for two classes is the logarithm of a likelihood ratio: how much more likely the received numbers are if
the two are one class than if they are different classes. The assignment puts classes into groups with at most one
class of each client, so that it never says that A is B and B is C but A is not C. A group of one is a class without a
match.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from factorized_fl.core.classes import DRIFT, MEANS, Matches
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.views import Tensors
from factorized_fl.methods.class_evidence import classes_differ, statistics_evidence

Array = np.ndarray
LARGEST = 4000  # classes of all clients together: evidence is a matrix over all pairs
_MOST = 20.0  # limit of the evidence from one pair, so that no pair outweighs all others
_LEAST = 1e-9
_STEPS = 50  # steps of expectation maximisation
_EXPECTED = 10.0  # weight of the expected share of equal pairs, in pairs of classes
_APART = 2.0  # least difference of the mean cosines of equal and of different classes, in deviations
_DRAWS = 1000  # random draws of unrelated directions
_CHANCE = 0.001  # the probability with which some clients without a common class seem to have one
_NEVER = -1e3  # evidence against classes of clients that have none in common


@dataclass(frozen=True)
class StatisticsMatcher:
    """Matches classes by the statistics of their images, which do not change during training."""

    def match(self, extra: Tensors, received: torch.Tensor) -> Matches:
        """Matches the classes of the received clients by their means."""
        there = (extra[MEANS][:, :, -1].cpu() > 0) & received[:, None]
        there &= classes_differ(extra, there)[:, None]
        if there.any(1).sum() < 2:
            return Matches.none(*there.shape)
        return _matches(*statistics_evidence(extra, there), there)


@dataclass(frozen=True)
class ClassifierMatcher:
    """Matches classes by how local training has moved the rows of the classifiers."""

    def match(self, extra: Tensors, received: torch.Tensor) -> Matches:
        """Matches the classes of the received clients by the directions of their rows."""
        drift = extra[DRIFT].double().cpu()
        there = drift.ne(0).any(2) & drift.isfinite().all(2) & received[:, None]
        owner, number = (part.numpy() for part in there.nonzero(as_tuple=True))
        if len({*owner}) < 2:
            return Matches.none(*there.shape)
        rows = drift[there].numpy()
        for k in np.unique(owner):  # a softmax does not change if all rows move alike
            rows[owner == k] -= rows[owner == k].mean(0)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _LEAST)
        return _matches(direction_evidence(rows, owner), owner, number, there)


def _matches(scores: Array, owner: Array, number: Array, there: torch.Tensor) -> Matches:
    """Labels and confidence in the shape [K, M] of `there`, from the evidence for all pairs of existing classes."""
    labels, confidence = assign_classes(scores, owner)
    found = Matches.none(*there.shape)
    place = torch.from_numpy(owner), torch.from_numpy(number)
    found.labels[place] = torch.from_numpy(labels)
    found.confidence[place] = torch.from_numpy(confidence)
    return found.but(found.confidence > 0)


def direction_evidence(rows: Array, owner: Array) -> Array:
    """The evidence that two classes are one, [N, N], from the directions of their rows, [N, D].

    Most pairs of classes are different, and the cosines of unrelated directions are as often below zero as above: the
    negative ones show the deviation of all cosines of different classes. Those of equal classes are a second normal
    distribution with the same deviation and a higher mean, which is estimated from clients that have classes in common.
    """
    clients, one = np.unique(owner, return_inverse=True)
    different = owner[:, None] != owner
    cosines = rows @ rows.T
    negative = cosines[different & (cosines < 0)]
    if not len(negative):
        return np.full_like(cosines, _NEVER)
    scores = cosines / max(float(np.sqrt(np.mean(negative**2))), 1e-3)
    together = _clients_together(scores, one, len(clients))[np.ix_(one, one)]
    if not together.any():
        return np.full_like(cosines, _NEVER)
    found, high = scores[together], _APART
    share = 1 / max(2.0, len(owner) / len(clients))
    for _ in range(_STEPS):
        ratio = np.exp(np.clip(high * (found - high / 2), -_MOST, _MOST))
        belongs = share * ratio / (share * ratio + 1 - share)
        share = max(float(belongs.mean()), _LEAST)
        high = max(_APART, float(belongs @ found) / max(float(belongs.sum()), _LEAST))
    return np.where(together, high * (scores - high / 2), _NEVER)


def _clients_together(scores: Array, owner: Array, clients: int) -> Array:
    """Which clients have classes in common, bool [K, K]: those whose classes fit better than unrelated directions do.

    Two clients fit by the logarithm of the likelihood ratio of all pairs of their classes. It is compared with that of
    random directions in a space where cosines have the same deviation. The upper twentieth of that distribution is
    taken as exponential, and the limit is what some pair of clients exceeds by chance with the probability `_CHANCE`.
    Clients that fit a third client fit each other.

    Args:
        scores: cosines in units of their deviation, [N, N].
        owner: the client of each class, from 0 to K - 1.
        clients: K.
    """
    belongs = np.eye(clients)[owner]
    count = belongs.sum(0).astype(int)
    dimensions = max(2, round(float(np.median(np.diag(scores))) ** 2))  # a class has the cosine 1 with itself
    share = (1 / np.maximum.outer(count, count))[np.ix_(owner, owner)]
    fits = belongs.T @ _log_mean_ratio(scores, share) @ belongs
    limit = np.zeros_like(fits)
    chance = _CHANCE / max(1, clients * (clients - 1) / 2)
    few, many = np.minimum.outer(count, count), np.maximum.outer(count, count)
    for one, two in {*zip(few.ravel().tolist(), many.ravel().tolist(), strict=True)}:
        limit[(few == one) & (many == two)] = _limit(one, two, dimensions, chance)
    fit = (fits > limit) & ~np.eye(clients, dtype=bool)
    from scipy.sparse.csgraph import connected_components  # imported here because it loads slowly

    group = connected_components(fit, directed=False)[1]
    return (group[:, None] == group) & ~np.eye(clients, dtype=bool)


def _log_mean_ratio(scores: Array, share: Array | float) -> Array:
    """The logarithm of how much more likely a score is if that share of pairs are equal classes than if none are."""
    return np.log1p(share * np.expm1(np.clip(_APART * (scores - _APART / 2), -_MOST, _MOST)))


@lru_cache(maxsize=1000)
def _limit(one: int, two: int, dimensions: int, chance: float) -> float:
    """The fit of two clients with so many classes that random directions exceed with the probability `chance`."""
    rng = numpy_rng(0, "unrelated directions", one, two)
    sides = []
    for count in (one, two):
        rows = rng.standard_normal((_DRAWS, count, dimensions))
        if count > 1:
            rows = rows - rows.mean(1, keepdims=True)
        sides.append(rows / np.maximum(np.linalg.norm(rows, axis=2, keepdims=True), _LEAST))
    scores = math.sqrt(dimensions) * (sides[0] @ sides[1].transpose(0, 2, 1))
    fits = np.sort(_log_mean_ratio(scores, 1 / max(one, two)).sum((1, 2)))
    tail = fits[-len(fits) // 20 :]
    return float(tail[0] + (tail[1:] - tail[0]).mean() * math.log(0.05 / chance))


def assign_classes(scores: Array, owner: Array) -> tuple[Array, Array]:
    """A group number for each class, int64 [N], and the confidence in it, from 0 to 1.

    The grouping maximises the summed evidence of all pairs in one group, after the prior of `prior_odds`. Groups are
    merged by their mean evidence; then the classes of one client at a time are assigned again to the groups of all
    others, by the Hungarian method, as long as this raises the sum.

    Args:
        scores: the evidence for each pair, [N, N].
        owner: the client of each class, [N].
    """
    clients = np.unique(owner)
    gain = np.clip(scores + prior_odds(scores, owner), -_MOST, _MOST)
    labels = _merge(gain, owner)
    for _ in range(5 * len(clients)):
        raised, members, better = max(
            (_reassigned(gain, owner, labels, k) for k in clients), key=lambda found: found[0]
        )
        if raised <= _LEAST:
            break
        labels[members] = better
    confidence = _confidence(gain, owner, labels)
    labels = np.unique(labels, return_inverse=True)[1]
    return labels, np.where(np.bincount(labels)[labels] > 1, confidence, 0.0)


def prior_odds(scores: Array, owner: Array) -> Array:
    """The logarithm of the odds that two classes are one before their own evidence counts, [N, N].

    Two clients that have many classes in common are expected to have more of them. So for each pair of clients the
    share of equal pairs of classes is estimated from the evidence for all of them, by expectation maximisation. It
    begins with the share at which a class is expected to have one equal class at the other clients, which counts as
    `_EXPECTED` pairs of classes that were seen.
    """
    clients, one = np.unique(owner, return_inverse=True)
    belongs = np.eye(len(clients))[one]  # [N, K]
    ratio = np.exp(np.clip(scores, -_MOST, _MOST))
    count = np.outer(belongs.sum(0), belongs.sum(0))
    base = 1 / max(2.0, len(owner) * (1 - 1 / len(clients)))
    share = np.full_like(count, base)
    for _ in range(_STEPS):
        odds = ratio * (share / (1 - share))[np.ix_(one, one)]
        found = belongs.T @ (odds / (1 + odds)) @ belongs
        before, share = share, np.clip((found + _EXPECTED * base) / (count + _EXPECTED), _LEAST, 0.5)
        if np.abs(share - before).max() < _LEAST:
            break
    return np.log(share / (1 - share))[np.ix_(one, one)]


def _merge(gain: Array, owner: Array) -> Array:
    """Merges the two groups with the highest mean gain while it is positive and no client is in both."""
    count = len(owner)
    labels, size = np.arange(count), np.ones(count)
    total = np.where(owner[:, None] == owner, -np.inf, gain)
    while True:
        mean = total / np.outer(size, size)
        one, two = np.unravel_index(np.argmax(mean), mean.shape)
        if not mean[one, two] > 0:
            return labels
        total[one] += total[two]
        total[:, one] = total[one]
        total[two] = total[:, two] = -np.inf
        total[one, one] = -np.inf
        size[one] += size[two]
        labels[labels == two] = one


def _groups(gain: Array, owner: Array, labels: Array, client: int) -> tuple[Array, Array, Array, Array]:
    """One client's classes, the labels of the groups of all others, the summed gain [C, G], and sizes of the groups."""
    members = np.flatnonzero(owner == client)
    others = np.flatnonzero(owner != client)
    groups, which = np.unique(labels[others], return_inverse=True)
    belongs = np.zeros((len(others), len(groups)))
    belongs[np.arange(len(others)), which] = 1.0
    return members, groups, gain[np.ix_(members, others)] @ belongs, belongs.sum(0)


def _reassigned(gain: Array, owner: Array, labels: Array, client: int) -> tuple[float, Array, Array]:
    """By how much the best assignment of one client's classes raises the sum; the classes, and their new labels."""
    members, groups, summed, _ = _groups(gain, owner, labels, client)
    choices = np.hstack([summed, np.zeros((len(members), len(members)))])  # each class may also stay without a match
    from scipy.optimize import linear_sum_assignment  # imported here because it loads slowly

    rows, columns = linear_sum_assignment(-choices)
    place = {label: index for index, label in enumerate(groups)}
    now = sum(summed[row, place[label]] for row, label in enumerate(labels[members]) if label in place)
    fresh = labels.max() + 1 + np.arange(len(members))
    better = np.array([groups[c] if c < len(groups) else fresh[row] for row, c in enumerate(columns)])
    return float(choices[rows, columns].sum() - now), members, better


def _confidence(gain: Array, owner: Array, labels: Array) -> Array:
    """The confidence of each class in its group.

    A pair of a class and a group with the mean gain g has the odds exp(g), or the probability p = exp(g) / (1 +
    exp(g)), if nothing else is known. The confidence is p times the product of 1 / (1 + r) over the rivals of the pair:
    the same class with other groups, and other classes of its client with the same group. r are the odds of the rival,
    divided by 1 + those of all other pairs of its group or class, because a class that fits elsewhere is no rival. So a
    class that is two classes elsewhere is not matched with the more similar one of them.
    """
    confidence = np.zeros(len(owner))
    for client in np.unique(owner):
        members, groups, summed, sizes = _groups(gain, owner, labels, client)
        odds = np.exp(summed / sizes)
        other_groups = np.log1p(odds / (1 + odds.sum(0) - odds))  # their groups may fit another class of the client
        other_classes = np.log1p(odds / (1 + odds.sum(1, keepdims=True) - odds))  # their classes may fit another group
        place = {label: index for index, label in enumerate(groups)}
        for row, k in enumerate(members):
            if labels[k] in place:
                column = place[labels[k]]
                rivals = other_groups[row].sum() + other_classes[:, column].sum()
                rivals -= other_groups[row, column] + other_classes[row, column]
                confidence[k] = odds[row, column] / (1 + odds[row, column]) * math.exp(-rivals)
    return confidence
