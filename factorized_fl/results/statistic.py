"""The one statistic that compares runs, on plain numbers.

A difference is decided when it is farther from a threshold than SURE standard errors; otherwise it is undecided.
Nothing here reads files or knows about methods: callers pass accuracies, counts and labels.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

SURE = 2.0  # standard errors beyond which a difference counts as decided


@dataclass(frozen=True)
class Difference:
    """A mean difference with its standard error, in the unit of the values it was computed from."""

    value: float
    error: float

    def decide(self, threshold: float = 0.0) -> Literal["above", "below", "undecided"]:
        """Return on which side of the threshold the difference lies, if it is SURE standard errors away from it."""
        margin = SURE * self.error
        if self.value - margin <= threshold <= self.value + margin:
            return "undecided"
        return "above" if self.value > threshold else "below"

    @property
    def verdict(self) -> Literal["helped", "harmed", "no difference"]:
        """Return the decision at threshold zero in the words of the report."""
        words: dict[str, Literal["helped", "harmed"]] = {"above": "helped", "below": "harmed"}
        return words.get(self.decide(), "no difference")


@dataclass(frozen=True)
class PairedSample:
    """Two runs of one seed, compared client by client."""

    differences: Sequence[float]
    groups: Sequence[Hashable] = ()  # clients of one group share test images: only the groups' means are independent
    last_rounds: Sequence[float] = ()  # differences of the two runs' means after each of their last rounds
    # The difference's sampling variance, if test sets tell it; replaces the variation between seeds and between rounds.
    variance: float | None = None


def paired_difference(samples: Sequence[PairedSample], between_seeds: float = 0.0) -> Difference | None:
    """Return the mean difference over all clients and seeds with its standard error; None without samples.

    The standard error is the largest of these: from all clients and seeds as if they were independent; from the means
    of groups that share test images; from the means of seeds; and from `between_seeds`, the known standard deviation
    of such differences from seed to seed, divided by the root of the number of seeds. To that the standard deviation
    over the last rounds is added in quadrature. Where the samples' variances are known, they take the place of the last
    two terms.
    """
    if not samples:
        return None
    by_seed = [statistics.fmean(sample.differences) for sample in samples]
    clients = [value for sample in samples for value in sample.differences]
    grouped = [mean for sample in samples for mean in _group_means(sample)]
    error = max(map(standard_error, (clients, grouped, by_seed)))
    count = len(samples)
    if all(sample.variance is not None for sample in samples):
        known = math.sqrt(sum(sample.variance or 0.0 for sample in samples)) / count
        return Difference(statistics.fmean(clients), max(error, known))
    rounds = sum(statistics.variance(sample.last_rounds) for sample in samples if len(sample.last_rounds) > 1)
    error = math.hypot(max(error, between_seeds / math.sqrt(count)), math.sqrt(rounds) / count)
    return Difference(statistics.fmean(clients), error)


def _group_means(sample: PairedSample) -> list[float]:
    groups: dict[Hashable, list[float]] = {}
    if sample.groups:
        for label, value in zip(sample.groups, sample.differences, strict=True):
            groups.setdefault(label, []).append(value)
    return list(map(statistics.fmean, groups.values()))


def client_difference(ours: Sequence[tuple[int, int]], baseline: Sequence[tuple[int, int]]) -> Difference:
    """Return one client's difference of accuracies over seeds from (correct answers, test images) of each seed."""
    # Two models are tested on the same images; taking their errors as independent overstates the standard error.
    # Shares are moved away from 0 and 1, so that no variance is zero.
    variances = [share_variance((correct + 1) / (total + 2), total) for correct, total in (*ours, *baseline)]
    means = [statistics.fmean(correct / total for correct, total in counts) for counts in (ours, baseline)]
    return Difference(means[0] - means[1], math.sqrt(sum(variances)) / len(ours))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of independent values; 0 for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def share_variance(share: float, count: int) -> float:
    """Return the variance of a share measured on so many independent test images."""
    return share * (1 - share) / count


def pooled_deviation(samples: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation within samples, pooled over all samples of at least two values; 0 without any."""
    several = [values for values in samples if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    return math.sqrt(squares / freedom) if freedom else 0.0


def variance_around_trend(values: Sequence[float]) -> float:
    """Return the variance of values around a steady trend, from every three neighbours; 0 for fewer than three."""
    # The middle of three independent values of variance s differs from its neighbours' mean by a variance of 1.5 s.
    bends = [b - (a + c) / 2 for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return statistics.fmean(bend**2 for bend in bends) / 1.5 if bends else 0.0


# -- permutation test: whether items with the same label are similar beyond chance

LabelStatistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of similarities [K, K] and labellings [n, K]


def nearest_share(similarities: np.ndarray, labellings: np.ndarray) -> np.ndarray:
    """Return the share of the own label among the most similar others, as many as the first item's label has."""
    others = np.where(np.eye(len(similarities), dtype=bool), -np.inf, similarities)
    count = int((labellings[0] == labellings[0, 0]).sum()) - 1
    nearest = np.argsort(-others, axis=1, kind="stable")[:, :count]
    return (labellings[:, nearest] == labellings[:, :, None]).mean(axis=(1, 2))


def within_excess(similarities: np.ndarray, labellings: np.ndarray) -> np.ndarray:
    """Return by how much the mean similarity within labels exceeds that between labels."""
    apart = ~np.eye(len(similarities), dtype=bool)
    same = (labellings[:, :, None] == labellings[:, None, :]) & apart
    sums, counts = (same * similarities).sum(axis=(1, 2)), same.sum(axis=(1, 2))
    return sums / counts - (similarities[apart].sum() - sums) / (apart.sum() - counts)


def permutation_p_value(
    samples: Sequence[tuple[np.ndarray, Sequence[str], np.random.Generator]],
    statistic: LabelStatistic,
    permutations: int = 2000,
) -> float:
    """Return the share of random permutations of labels that have at least the statistic of the real labels.

    A sample is a matrix of similarities, the labels of its items and a generator. The statistic is the mean over
    samples; the labels of each are permuted independently. Without two items of one label the share is 1.
    """
    values = []
    for similarities, labels, generator in samples:
        _, real = np.unique(labels, return_inverse=True)
        if len(set(labels)) == len(labels):
            return 1.0
        labellings = np.stack([real, *(generator.permutation(real) for _ in range(permutations))])
        values.append(statistic(similarities, labellings))
    mean = np.mean(values, axis=0)
    return float((mean >= mean[0] - 1e-12).mean())
