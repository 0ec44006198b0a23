"""Limits on what one client can do to the others, from the median of the group.

A single client cannot move the median of three or more, so the limits follow the training: they are wide while all
clients learn fast, and narrow later.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import torch

from factorized_fl.core.ledger import EXTRA, FINGERPRINT
from factorized_fl.core.views import Tensors

FEWEST = 3  # clients; with two, one of them would move the median
_LEAST = 0.02  # of a tensor's norm: a smaller change is never limited, so that a newcomer can still learn at the end
_COUNT = 3.0  # times the median: the largest number of examples that counts


def limit_changes(
    begun: Mapping[int, Tensors], updates: Mapping[int, Tensors], limit: float
) -> dict[int, dict[str, float]]:
    """The clients that changed far more than the group, with a factor below 1 for each tensor to shorten.

    `begun` holds the tensors with which each client's training began. The norm of a whole change is limited to `limit`
    times the median of all clients, that of one tensor to four times as much: honest clients differ more in one tensor.
    """
    if len(updates) < FEWEST or not limit:
        return {}
    names = [name for name in next(iter(updates.values())) if name != FINGERPRINT and not name.startswith(EXTRA)]
    norms = {
        k: {name: float((tensors[name].double() - begun[k][name].double()).norm()) for name in names}
        for k, tensors in updates.items()
    }
    sizes = {k: {name: float(begun[k][name].double().norm()) for name in names} for k in updates}
    factors = {k: dict.fromkeys(names, 1.0) for k in updates}
    for name in names:
        most = _most([norms[k][name] for k in updates], [sizes[k][name] for k in updates], 4 * limit)
        for k in updates:
            factors[k][name] = min(1.0, most / norms[k][name]) if norms[k][name] else 1.0
    whole = {k: math.hypot(*(norms[k][name] * factors[k][name] for name in names)) for k in updates}
    most = _most(list(whole.values()), [math.hypot(*each.values()) for each in sizes.values()], limit)
    for k, norm in whole.items():
        if norm > most:
            factors[k] = {name: factor * most / norm for name, factor in factors[k].items()}
    shortened = {k: {name: factor for name, factor in each.items() if factor < 1} for k, each in factors.items()}
    return {k: each for k, each in shortened.items() if each}


def _most(changes: Sequence[float], sizes: Sequence[float], limit: float) -> float:
    return max(limit * statistics.median(changes), _LEAST * (1.0 + statistics.median(sizes)))


def shorten(begun: torch.Tensor, update: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns begun + factor * (update - begun)."""
    return (begun.double() + factor * (update.double() - begun.double())).to(update)


def capped(counts: Iterable[int]) -> list[int]:
    """Numbers of examples, each at most three times the median, if there are at least three."""
    given = list(counts)
    most = int(_COUNT * statistics.median(given)) if len(given) >= FEWEST else max(given, default=0)
    return [min(count, most) for count in given]
