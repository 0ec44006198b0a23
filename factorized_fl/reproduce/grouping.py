"""Whether clients of one domain are alike by more than chance: domains dealt out anew to the same clients."""

from collections.abc import Callable, Sequence

import numpy as np

from factorized_fl.core.seeds import numpy_rng
from factorized_fl.reproduce.cells import Result

DEALS = 2000
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of cosines [K, K] and some deals of domains [n, K]


def nearest_of_own(cosines: np.ndarray, deals: np.ndarray) -> np.ndarray:
    """The share of one's own domain among as many most similar clients as the first client's has others."""
    others = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)
    count = int((deals[0] == deals[0, 0]).sum()) - 1
    nearest = np.argsort(-others, axis=1, kind="stable")[:, :count]
    return (deals[:, nearest] == deals[:, :, None]).mean(axis=(1, 2))


def closer_within(cosines: np.ndarray, deals: np.ndarray) -> np.ndarray:
    """How much higher the mean cosine is with clients of one's own domain than with others."""
    apart = ~np.eye(len(cosines), dtype=bool)
    same = (deals[:, :, None] == deals[:, None, :]) & apart
    sums, counts = (same * cosines).sum(axis=(1, 2)), same.sum(axis=(1, 2))
    return sums / counts - (cosines[apart].sum() - sums) / (apart.sum() - counts)


def chance(results: Sequence[Result], kind: str, statistic: Statistic) -> float:
    """How often domains dealt out at random have as much of a statistic as the real ones, in the last round.

    The mean over seeds is compared; every seed's domains are dealt out by themselves. Where nobody shares a domain
    there is nothing but chance.
    """
    if len(set(results[0].domains)) == len(results[0].domains):
        return 1.0
    values = []
    for result in results:
        cosines = np.array(list(result.record["factors"][kind]["matrices"].values())[-1])
        _, real = np.unique(result.domains, return_inverse=True)
        rng = numpy_rng(result.seed, "deals", kind)
        deals = np.stack([real, *(rng.permutation(real) for _ in range(DEALS))])
        values.append(statistic(cosines, deals))
    mean = np.mean(values, axis=0)
    return float((mean >= mean[0] - 1e-12).mean())
