"""The statistic that compares two runs: differences between pairs of answers to the same test images.

docs/verdict.md has the formulas. Nothing here reads files or knows about methods: callers pass, for each client and
seed, which images only the one run or only the other classified right.
"""

import math
import statistics
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
H = TypeVar("H", bound=Hashable)
Word = Literal["helped", "harmed", "undecided"]

LEVEL = 0.05  # probability that a comparison without any effect names some client; 1 - LEVEL is that of intervals
PRIOR = 1.0  # degrees of freedom with which the clients' pooled seed variance counts in that of a single client
CORRELATION = 0.5  # assumed between clients, of the deviations that a seed causes
_EXAMPLES = 10_000  # gains of a test of which only standard errors are known
_MOST_FREEDOM = 1e6  # degrees of freedom at which Student's distribution is the normal one


@dataclass(frozen=True)
class PairedTest:
    """The test of one client with one seed by two runs."""

    client: Hashable
    seed: Hashable
    gain: Array  # for each image 1 where only the run is right, -1 where only the reference is, else 0: [n]
    images: Array  # marks that are equal for equal images, [n]

    @property
    def mean(self) -> float:
        """Return the difference of the two accuracies."""
        return float(self.gain.mean())


def paired_from_counts(
    client: Hashable, seed: Hashable, ours: tuple[int, int], theirs: tuple[int, int], group: Hashable
) -> PairedTest:
    """Return a test of which only (right, total) of both runs is known.

    It has as many discordant images as two independent tests would have. Tests with one `group`, seed and total share
    their images, and their clients differ on the same ones, which makes the error too large rather than too small.
    """
    (right, total), (reference, others) = ours, theirs
    size = min(total, others)
    one, other = right / total, reference / others
    fewer = size * min(one * (1 - other), other * (1 - one))
    gap = round(size * (one - other))
    only_ours, only_theirs = round(fewer) + max(gap, 0), round(fewer) + max(-gap, 0)
    gain = np.zeros(size, dtype=np.int8)
    gain[:only_ours] = 1
    gain[only_ours : only_ours + only_theirs] = -1
    start = zlib.crc32(repr((group, seed, size)).encode()) << 24
    return PairedTest(client, seed, gain, np.arange(start, start + size))


def paired_from_errors(
    client: Hashable, seed: Hashable, difference: float, errors: tuple[float, float], group: Hashable
) -> PairedTest:
    """Return a test of which only the difference and both scores' standard errors are known.

    Its gains alternate around the difference with the variance of two independent tests.
    """
    variance = errors[0] ** 2 + errors[1] ** 2
    swing = np.sqrt(_EXAMPLES * variance) * np.resize([1.0, -1.0], _EXAMPLES)
    start = zlib.crc32(repr((group, seed)).encode()) << 24
    return PairedTest(client, seed, difference + swing, np.arange(start, start + _EXAMPLES))


@dataclass(frozen=True)
class Estimate:
    """A mean difference with its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    freedom: float = _MOST_FREEDOM

    @property
    def margin(self) -> float:
        """Return half the length of the interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error

    @property
    def low(self) -> float:
        """Return the lower end of the 95% interval."""
        return self.value - self.margin

    @property
    def high(self) -> float:
        """Return the upper end of the 95% interval."""
        return self.value + self.margin

    @property
    def p(self) -> float:
        """Return the two-sided p-value of no difference."""
        if not self.error:
            return 1.0
        from scipy.special import stdtr

        return float(2 * stdtr(self.freedom, -abs(self.value) / self.error))


@dataclass(frozen=True)
class Paired:
    """The result of comparing two runs: for every client, and for their mean."""

    seeds: int
    mean: Estimate
    clients: dict[Hashable, Estimate]
    words: dict[Hashable, Word]


def compare_paired(tests: Sequence[PairedTest], between_seeds: float = 0.0) -> Paired | None:
    """Return the differences of all clients and their mean; None without tests.

    With one seed the errors are those of the test images, and no client is named. `between_seeds` is the standard
    deviation of the mean difference from seed to seed, where it is known from other runs.
    """
    if not tests:
        return None
    of_client: dict[Hashable, list[PairedTest]] = {}
    for test in tests:
        of_client.setdefault(test.client, []).append(test)
    seeds = list(dict.fromkeys(test.seed for test in tests))
    values = {k: float(np.mean([test.mean for test in own])) for k, own in of_client.items()}
    mean = float(np.mean(list(values.values())))
    if len(seeds) == 1:
        alone = {k: Estimate(values[k], _image_variance(own) ** 0.5) for k, own in of_client.items()}
        added = max(0.0, between_seeds**2 - _unshared_variance(tests))
        estimate = Estimate(mean, (_image_variance(tests) + added) ** 0.5)
        return Paired(1, estimate, alone, dict.fromkeys(alone, "undecided"))

    several = {k: own for k, own in of_client.items() if len(own) > 1}
    freedoms = np.array([len(own) - 1 for own in several.values()])
    spreads = np.array([np.var([test.mean for test in own], ddof=1) for own in several.values()])
    # The seed's own part of the variance of one seed's difference, without the error of the test images.
    excess = spreads - np.array([len(own) * _unshared_variance(own) for own in several.values()])
    weights = freedoms / max(freedoms.sum(), 1)
    pooled, total = max(0.0, float(weights @ excess)), float(weights @ spreads)
    # Deviations that clients have in common make the pooled variance less certain than that of independent clients.
    freedom = freedoms.sum() / (1 + (len(several) - 1) * CORRELATION**2)
    own_excess = dict(zip(several, zip(freedoms, excess, strict=True), strict=True))
    clients = {}
    for k, own in of_client.items():
        count, known = own_excess.get(k, (0, 0.0))
        added = max(pooled, (count * known + PRIOR * pooled) / (count + PRIOR)) / len(own)
        variance = _image_variance(own) + added
        least = max(1, len(own) - 1)
        clients[k] = _estimate(values[k], variance, max(total / len(own), added), freedom, least)
    estimate = _mean_estimate(tests, seeds, mean, pooled, freedom, len(of_client), between_seeds)
    return Paired(len(seeds), estimate, clients, _name_clients({k: clients[k] for k in several}, clients))


def _mean_estimate(
    tests: Sequence[PairedTest],
    seeds: Sequence[Hashable],
    mean: float,
    pooled: float,
    freedom: float,
    clients: int,
    between_seeds: float,
) -> Estimate:
    """Return the mean over clients with the largest of its seed variances: its own, the pooled clients', the known."""
    by_seed = [np.mean([test.mean for test in tests if test.seed == seed]) for seed in seeds]
    spread = float(np.var(by_seed, ddof=1)) / len(seeds)
    unshared = _unshared_variance(tests)
    measured, known = spread - unshared, between_seeds**2 / len(seeds) - unshared
    expected = pooled / len(seeds) * (1 + (clients - 1) * CORRELATION) / clients
    added = max(measured, expected, known)
    variance = _image_variance(tests) + added
    if between_seeds and known >= max(measured, expected, 0.0):
        return Estimate(mean, variance**0.5)
    if measured > expected:
        freedom = len(seeds) - 1
    return _estimate(mean, variance, max(spread, added), freedom, len(seeds) - 1)


def _estimate(value: float, variance: float, uncertain: float, freedom: float, least: float) -> Estimate:
    """Return an estimate whose freedom is Satterthwaite's: only the part `uncertain` of the variance is estimated."""
    share = uncertain**2 / freedom if freedom else 0.0
    found = min(variance**2 / share, _MOST_FREEDOM) if share else _MOST_FREEDOM
    return Estimate(value, variance**0.5, max(found, least))


def _name_clients(tested: dict[Hashable, Estimate], clients: Iterable[Hashable]) -> dict[Hashable, Word]:
    """Return each client's verdict, by Holm's procedure over the tested ones."""
    words: dict[Hashable, Word] = dict.fromkeys(clients, "undecided")
    for k, p in holm({k: estimate.p for k, estimate in tested.items()}).items():
        if p <= LEVEL:
            words[k] = "helped" if tested[k].value > 0 else "harmed"
    return words


def holm(p_values: Mapping[H, float]) -> dict[H, float]:
    """Return p-values adjusted for their number: the share of comparisons in which any true hypothesis is rejected."""
    adjusted, so_far = dict[H, float](), 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = so_far
    return adjusted


# -- the error of the test images


def _weights(tests: Sequence[PairedTest]) -> list[float]:
    """Return the weight of one image of each test in the mean over clients of their means over seeds."""
    counts: dict[Hashable, int] = {}
    for test in tests:
        counts[test.client] = counts.get(test.client, 0) + 1
    return [1 / (len(test.gain) * counts[test.client] * len(counts)) for test in tests]


def _image_variance(tests: Sequence[PairedTest]) -> float:
    """Return the variance of the mean that comes from the test images, under no difference.

    Each test counts as having one discordant image more, so that no error is zero.
    """
    weights = _weights(tests)
    gains = [weight * test.gain for weight, test in zip(weights, tests, strict=True)]
    return _clustered(tests, gains) + sum(weight**2 for weight in weights)


def _unshared_variance(tests: Sequence[PairedTest]) -> float:
    """Return the part of the images' variance that is independent between seeds, and so is part of their spread."""
    weights = _weights(tests)
    gains = [weight * (test.gain - test.mean) for weight, test in zip(weights, tests, strict=True)]
    seeds = {test.seed for test in tests}
    if len(seeds) == 1:
        return _clustered(tests, gains)
    apart = 0.0
    for seed in seeds:
        chosen = [index for index, test in enumerate(tests) if test.seed == seed]
        apart += _clustered([tests[index] for index in chosen], [gains[index] for index in chosen])
    # Images that several seeds share add the same deviation to each, which the seeds' spread does not show.
    both = _clustered(tests, gains)
    return min(max((len(seeds) * apart - both) / (len(seeds) - 1), 0.0), apart)


def _clustered(tests: Sequence[PairedTest], gains: Sequence[Array]) -> float:
    """Return the sum over images of the squared sum of an image's weighted gains in all tests."""
    images: dict[bytes, Array] = {}
    sums: dict[bytes, Array] = {}
    for test, gain in zip(tests, gains, strict=True):
        key = test.images.tobytes()
        images.setdefault(key, test.images)
        sums[key] = sums[key] + gain if key in sums else gain
    _, codes = np.unique(np.concatenate(list(images.values())), return_inverse=True)
    return float((np.bincount(codes, weights=np.concatenate(list(sums.values()))) ** 2).sum())


# -- variances of scores


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
