"""Whether clients of one domain are similar beyond chance: permutation tests over the assignment of domains."""

from collections.abc import Callable, Sequence

import numpy as np

from factorized_fl.core.seeds import numpy_rng
from studies.paper.runs import Run

DEALS = 2000
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of cosines [K, K] and some assignments of domains [n, K]


def nearest_of_own(cosines: np.ndarray, deals: np.ndarray) -> np.ndarray:
    """Return the share of the own domain among the most similar clients, as many as the first client's has others."""
    others = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)
    count = int((deals[0] == deals[0, 0]).sum()) - 1
    nearest = np.argsort(-others, axis=1, kind="stable")[:, :count]
    return (deals[:, nearest] == deals[:, :, None]).mean(axis=(1, 2))


def closer_within(cosines: np.ndarray, deals: np.ndarray) -> np.ndarray:
    """Return by how much the mean cosine within domains exceeds that between domains."""
    apart = ~np.eye(len(cosines), dtype=bool)
    same = (deals[:, :, None] == deals[:, None, :]) & apart
    sums, counts = (same * cosines).sum(axis=(1, 2)), same.sum(axis=(1, 2))
    return sums / counts - (cosines[apart].sum() - sums) / (apart.sum() - counts)


def chance(runs: Sequence[Run], factor: str, statistic: Statistic) -> float:
    """Return the share of random assignments of domains that have at least the statistic of the real one.

    The statistic is the mean over seeds in the last round; every seed's domains are assigned independently. Without two
    clients of one domain the share is 1.
    """
    if len(set(runs[0].domains)) == len(runs[0].domains):
        return 1.0
    values = []
    for run in runs:
        cosines = np.array(list(run.record["factors"][factor]["matrices"].values())[-1])
        _, real = np.unique(run.domains, return_inverse=True)
        rng = numpy_rng(run.seed, "deals", factor)
        deals = np.stack([real, *(rng.permutation(real) for _ in range(DEALS))])
        values.append(statistic(cosines, deals))
    mean = np.mean(values, axis=0)
    return float((mean >= mean[0] - 1e-12).mean())
