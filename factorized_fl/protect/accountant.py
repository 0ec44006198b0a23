"""Accounting of differential privacy: epsilon of a number of noisy steps, and the noise that a budget permits.

The accountant is that of Gopi, Lee and Wutschitz (2021, "Numerical composition of differential privacy"), the package
prv-accountant. It gives an interval for epsilon; all functions here return its upper end.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from factorized_fl.core.errors import UserError

_ERROR = 0.01  # width of the accountant's interval, as a share of the budget
_DELTA_ERROR = 1e-3  # the same of delta
_FINER = 5  # times that the interval is halved where the accountant refuses its mesh
_DIGITS = 4  # digits to which the noise is rounded up, so that all machines use the same noise
_LEAST, _MOST = 0.05, 1e4  # smallest and largest noise that is tried
_NEAR = 0.97  # least share of the budget that is used
_CLOSE = 1.01  # the search ends at this ratio of sufficient and insufficient noise
_SLOPE = 0.75  # the noise grows about as this power of 1 / epsilon
_ROOM = 100.0  # times the budget: a larger epsilon is reported as infinite
_ORDERS = (*range(2, 17), *range(18, 65, 4))
_NORMAL = NormalDist()


def require_accountant() -> None:
    """Raise UserError if the accountant is missing."""
    try:
        import prv_accountant  # noqa: F401
    except ImportError:
        raise UserError('Differential privacy needs an accountant: pip install "factorized-fl[private]".') from None


def gaussian_delta(noise: float, epsilon: float) -> float:
    """Delta of a single Gaussian release with that noise for a sensitivity of 1 (Balle and Wang, 2018, Theorem 8)."""
    near, far = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
    return _NORMAL.cdf(near) - math.exp(epsilon) * _NORMAL.cdf(far)


def noise_of_release(epsilon: float, delta: float) -> float:
    """The least noise of a single Gaussian release, for a sensitivity of 1, that keeps the budget."""
    return _smallest(lambda noise: gaussian_delta(noise, epsilon) <= delta)


def epsilon_spent(delta: float, noise: float, rate: float, steps: int, release: float, budget: float) -> float:
    """Epsilon of so many steps, each with that noise on a Poisson sample of that rate, after a single Gaussian release.

    `noise` is in units of the clipping norm. `release` is the noise of the single release, 0 if there was none. The
    result is the accountant's upper bound, which exceeds epsilon by less than 2% of `budget`, or infinity far above it.
    """
    if not steps:
        return _alone(delta, release) if release else 0.0
    if noise <= 0:
        return math.inf
    room = 1 << max(0, steps - 1).bit_length()  # one accountant serves many numbers of steps
    return _composed(delta, noise, rate, steps, release, budget, room)


def noise_of_steps(epsilon: float, delta: float, rate: float, steps: int, release: float) -> float:
    """Noise with which so many steps and the single release keep the budget: the least one, up to a few percent."""
    if release and _alone(delta, release) >= epsilon:
        raise ValueError("the release alone exceeds the budget")
    noise = _smallest(lambda noise: _by_limit(delta, noise, rate, steps, release) <= epsilon)
    low, high = 0.0, math.inf  # noise that exceeds the budget, and noise that keeps it
    while high > low * _CLOSE:  # epsilon falls about as a power of the noise, so few trials are needed
        found = epsilon_spent(delta, noise, rate, steps, release, epsilon)
        if _NEAR * epsilon <= found <= epsilon:
            return noise
        low, high = (low, min(high, noise)) if found <= epsilon else (max(low, noise), high)
        factor = (found / ((1 + _NEAR) / 2 * epsilon)) ** _SLOPE if math.isfinite(found) else 2.0
        noise = _rounded_up(noise * min(max(factor, 0.5), 2.0))
        if not low < noise < high:
            noise = _rounded_up(math.sqrt(low * high))
    return high


def most_steps(epsilon: float, delta: float, noise: float, rate: float, release: float, planned: int) -> int:
    """The largest number of steps, up to `planned`, that keeps the budget."""
    few, many = 0, planned
    while few < many:
        middle = (few + many + 1) // 2
        if epsilon_spent(delta, noise, rate, middle, release, epsilon) <= epsilon:
            few = middle
        else:
            many = middle - 1
    return few


def _smallest(enough: Callable[[float], bool]) -> float:
    """The least number of four digits for which `enough` is true."""
    low, high = _LEAST, _MOST
    while high / low > 1 + 10.0**-_DIGITS:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _rounded_up(high)


def _rounded_up(noise: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(noise)) - _DIGITS + 1)
    return float(f"{math.ceil(noise / unit) * unit:.{_DIGITS}g}")


def _alone(delta: float, release: float) -> float:
    """Epsilon of the single release."""
    low, high = 0.0, 1.0
    while gaussian_delta(release, high) > delta:
        high *= 2
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(release, middle) > delta else (low, middle)
    return high


def _by_limit(delta: float, noise: float, rate: float, steps: int, release: float) -> float:
    """Epsilon by the central limit theorem (Bu et al., 2020): a first guess, which is not a bound."""
    each = math.expm1(min(700.0, noise**-2)) * rate**2 if rate < 1 else noise**-2
    together = math.sqrt(steps * each + (release**-2 if release else 0.0))
    return _alone(delta, 1 / together) if together < 30 else math.inf


@lru_cache(maxsize=4096)
def _composed(delta: float, noise: float, rate: float, steps: int, release: float, budget: float, room: int) -> float:
    accountant = _accountant(delta, noise, rate, release, budget, room)
    if accountant is None:
        return math.inf
    _, _, upper = accountant.compute_epsilon(delta, [steps, *([1] if release else [])])
    return float(upper)


@lru_cache(maxsize=64)
def _accountant(delta: float, noise: float, rate: float, release: float, budget: float, room: int) -> Any:
    """An accountant for up to `room` steps; None where epsilon is too large, or too hard to compute."""
    require_accountant()
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    if _by_limit(delta, noise, rate, room, release) > _ROOM * budget:
        return None
    step = (
        GaussianMechanism(noise_multiplier=noise)
        if rate >= 1
        else PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    )
    parts = [step, *([GaussianMechanism(noise_multiplier=release)] if release else [])]
    counts = [room, *([1] if release else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every domain that it did not choose itself
        for error in (_ERROR * budget / 2**finer for finer in range(_FINER)):
            with suppress(RuntimeError):  # it refuses a mesh on which the mean of the privacy loss is not exact
                return PRVAccountant(
                    prvs=parts,
                    max_self_compositions=counts,
                    eps_error=error,
                    delta_error=_DELTA_ERROR * delta,
                    eps_max=_domain(parts, counts, error, _DELTA_ERROR * delta),
                )
    return None


def _domain(parts: Sequence[Any], counts: Sequence[int], eps_error: float, delta_error: float) -> float:
    """A privacy loss that is exceeded with so small a probability that it is part of the error (their Remark 5.6).

    The accountant's own bound is the same, from 150 orders of which 100 are fractions and take seconds.
    """
    from prv_accountant.other_accountants import RDP

    *_, largest = RDP(parts, _ORDERS).compute_epsilon(delta_error / 4, counts)
    for part in parts:
        *_, single = RDP([part], _ORDERS).compute_epsilon(delta_error / 8 / sum(counts), [1])
        largest = max(largest, single)
    return float(max(largest, eps_error) + 3)
