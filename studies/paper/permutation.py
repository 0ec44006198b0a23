"""A permutation test: whether items with the same label are similar beyond chance."""

from collections.abc import Callable, Sequence

import numpy as np

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
