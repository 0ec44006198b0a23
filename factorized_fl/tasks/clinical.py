"""Metrics as clinical studies report them, each with a 95% interval, from probabilities and true classes.

| metric | definition | interval |
|---|---|---|
| accuracy | share of examples whose most probable class is the true one | Wilson |
| balanced accuracy | mean over the classes present of the share of their examples classified right | MOVER |
| sensitivity of a class | share of its examples whose probability of it is at least the threshold | Wilson |
| specificity of a class | share of the other examples whose probability of it is below the threshold | Wilson |
| AUROC of a class | share of pairs of its and other examples that its probability orders right | DeLong, logit |
| Brier score | half the squared distance of probabilities from the true class, 0 to 1 | bootstrap |
| calibration error | mean gap in ten bins between the largest probability and the share right | basic bootstrap |

MOVER combines the Wilson intervals of the classes: each side of the interval of a mean of C independent shares is 1/C
of the root of the sum of the squared sides. The bootstrap draws the examples of each class with replacement, 1,000
times, from a fixed seed; its interval lies between the 2.5% and the 97.5% quantile. Resampling adds noise to the
calibration error, which raises it: the basic bootstrap reflects the quantiles at the estimate and so removes most of
that bias; for a perfectly calibrated model the interval contains 0 in about three of four cases. An AUROC of exactly 0
or 1 has no interval, because DeLong's variance is then zero whatever the number of examples.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEW = 20  # cases of a class; below that an interval of a share can span more than 40 points
BINS = 10
_DRAWS = 1000
_Z = 1.959963984540054  # the 97.5% quantile of the normal distribution

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A metric with its 95% interval and the number of examples that it is measured on; NaN where undefined."""

    value: float
    low: float
    high: float
    cases: int


@dataclass(frozen=True)
class ClassMetrics:
    """How well one class is distinguished from all others."""

    cases: int
    auroc: Measured
    sensitivity: Measured
    specificity: Measured

    @property
    def few(self) -> bool:
        """Whether the class has too few cases for useful intervals."""
        return self.cases < FEW


@dataclass(frozen=True)
class ClinicalMetrics:
    """The metrics of a model on one group of examples."""

    cases: int
    threshold: float
    accuracy: Measured
    balanced_accuracy: Measured
    brier: Measured
    calibration_error: Measured
    classes: tuple[ClassMetrics, ...]
    confusion: tuple[tuple[int, ...], ...]  # rows are true classes, columns predicted ones


def clinical_metrics(probabilities: Numbers, labels: NDArray[np.int64], threshold: float = 0.5) -> ClinicalMetrics:
    """Return the metrics of a model.

    Args:
        probabilities: of each class for each example, [N, C] with rows that sum to 1.
        labels: the true class of each example, [N].
        threshold: the probability from which an example counts as positive for a class.
    """
    count, classes = probabilities.shape
    predicted = probabilities.argmax(1)
    right = predicted == labels
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    sizes = np.bincount(labels, minlength=classes)
    squared = ((probabilities - np.eye(classes)[labels]) ** 2).sum(1) / 2
    confidence = probabilities.max(1)
    order = np.argsort(labels, kind="stable")  # the draws below stay within each class
    statistics: list[Callable[[NDArray[np.int64]], float]] = [
        lambda chosen: float(squared[chosen].mean()),
        lambda chosen: calibration_error(confidence[chosen], right[chosen]),
    ]
    draws = _bootstrap(statistics, order, sizes[sizes > 0])
    values = [statistic(order) for statistic in statistics]
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    calibration = (max(0.0, 2 * values[1] - high[1]), max(0.0, 2 * values[1] - low[1]))
    shares = [wilson(int(confusion[c, c]), int(sizes[c])) for c in range(classes) if sizes[c]]
    return ClinicalMetrics(
        cases=count,
        threshold=threshold,
        accuracy=wilson(int(right.sum()), count),
        balanced_accuracy=mean_of_shares(shares),
        brier=Measured(values[0], float(low[0]), float(high[0]), count),
        calibration_error=Measured(values[1], float(calibration[0]), float(calibration[1]), count),
        classes=tuple(_class_metrics(probabilities[:, c], labels == c, threshold) for c in range(classes)),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
    )


def _class_metrics(scores: Numbers, positive: NDArray[np.bool_], threshold: float) -> ClassMetrics:
    """Return the metrics of one class against all others."""
    called = scores >= threshold
    cases = int(positive.sum())
    return ClassMetrics(
        cases=cases,
        auroc=delong(scores, positive),
        sensitivity=wilson(int((called & positive).sum()), cases),
        specificity=wilson(int((~called & ~positive).sum()), len(scores) - cases),
    )


def wilson(successes: int, total: int) -> Measured:
    """Return a share with Wilson's score interval; NaN without examples."""
    if not total:
        return Measured(math.nan, math.nan, math.nan, 0)
    share, square = successes / total, _Z**2 / total
    centre = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return Measured(share, low, high, total)


def mean_of_shares(shares: Sequence[Measured]) -> Measured:
    """Return the mean of independent shares with the MOVER interval."""
    count, value = len(shares), math.fsum(share.value for share in shares) / len(shares)
    down = math.hypot(*(share.value - share.low for share in shares)) / count
    up = math.hypot(*(share.high - share.value for share in shares)) / count
    return Measured(value, value - down, value + up, sum(share.cases for share in shares))


def delong(scores: Numbers, positive: NDArray[np.bool_]) -> Measured:
    """Return the area under the ROC curve with DeLong's interval on the logit scale.

    The interval is NaN if the area is 0 or 1, or with fewer than two positive or two negative examples; the area is NaN
    if either are missing.
    """
    count = len(scores)
    ups, downs = scores[positive], scores[~positive]
    m, n = len(ups), len(downs)
    if not m or not n:
        return Measured(math.nan, math.nan, math.nan, count)
    from scipy.stats import rankdata  # imported here because it takes half as long to load as PyTorch

    ranks = rankdata(np.concatenate([ups, downs]))  # the mean rank of equal scores, from 1
    # The share of negatives below each positive, and of positives above each negative; ties count half.
    above = (ranks[:m] - rankdata(ups)) / n
    below = 1 - (ranks[m:] - rankdata(downs)) / m
    area = float(above.mean())
    if m < 2 or n < 2 or not 0 < area < 1:
        return Measured(area, math.nan, math.nan, count)
    deviation = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    middle, half = math.log(area / (1 - area)), _Z * deviation / (area * (1 - area))
    low, high = (1 / (1 + math.exp(-max(-700.0, middle + side * half))) for side in (-1, 1))
    return Measured(area, low, high, count)


def calibration_error(confidence: Numbers, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over ten bins of equal width of the largest probability."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)  # the sum of the differences in each bin
    return float(np.abs(gaps).sum() / len(confidence))


def _bootstrap(
    statistics: Sequence[Callable[[NDArray[np.int64]], float]],
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> Numbers:
    """Return the statistics of 1,000 draws of the examples, [draws, statistics]; `order` sorts examples by class."""
    rng = np.random.default_rng(0)
    first, size = np.repeat(np.cumsum(sizes) - sizes, sizes), np.repeat(sizes, sizes)
    found = np.empty((_DRAWS, len(statistics)))
    for draw in range(_DRAWS):
        chosen = order[first + (rng.random(len(order)) * size).astype(np.int64)]
        found[draw] = [statistic(chosen) for statistic in statistics]
    return found
