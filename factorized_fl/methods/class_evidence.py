"""Evidence from statistics of images: for each pair of classes, and for each client that its classes differ at all."""

import numpy as np
import torch

from factorized_fl.core.classes import MEANS, SPREAD
from factorized_fl.core.views import Tensors
from factorized_fl.methods.class_statistics import covariance

Array = np.ndarray
_SUREST = 1e-6  # variance of a mean in units of that of single images, whatever a client declares
_FLOOR = 1e-3  # of a feature's variance, relative to the mean of all
_LEAST = 1e-9
_CHANCE = 0.001  # the probability with which any of all clients with random labels seems to have classes


def classes_differ(extra: Tensors, there: torch.Tensor) -> torch.Tensor:
    """Whether the means of a client's classes differ by more than those of random groups of its images, bool [K].

    This is Dempster's trace test: the variance of the means between the classes, divided by that of images within them,
    has approximately an F distribution if the groups are random. Both are measured with respect to the covariance
    within classes of all clients. A client with a single class passes; one without any does not.
    """
    from scipy.special import fdtrc  # imported here because it loads slowly

    counts = there.sum(1)
    result = counts == 1
    if not (counts > 1).any():
        return result
    owner = there.nonzero(as_tuple=True)[0].numpy()
    means, variance = _means(extra, there)
    covariances, freedom = _within(extra, there)
    root = _root(*_pooled(covariances, freedom))
    for k in (counts > 1).nonzero().flatten().tolist():
        own, count, images = means[owner == k], int(counts[k]), 1 / variance[owner == k]
        white = np.linalg.solve(root, (own - images @ own / images.sum()).T).T
        inside = np.linalg.solve(root, np.linalg.solve(root, covariances[k]).T)
        trace, square, free = np.trace(inside) + _LEAST, (inside**2).sum(), max(freedom[k], 2.0)
        # Without bias: the squares of an estimated covariance are too large.
        square = max(free**2 / ((free - 1) * (free + 2)) * (square - trace**2 / free), trace**2 / len(inside))
        dimensions = trace**2 / square
        ratio = float(((white**2).sum(1) * images).sum() / (count - 1) / trace)
        chance = fdtrc(dimensions * (count - 1), dimensions * free, ratio)
        result[k] = bool(chance < _CHANCE / len(covariances))
    return result


def statistics_evidence(extra: Tensors, there: torch.Tensor) -> tuple[Array, Array, Array]:
    """The evidence for all pairs of classes where `there` is true, bool [K, M]; their clients, and their numbers."""
    owner, number = (part.numpy() for part in there.nonzero(as_tuple=True))
    means, variance = _means(extra, there)
    return likelihood_ratios(means, variance, *_pooled(*_within(extra, there))), owner, number


def likelihood_ratios(means: Array, variance: Array, inside: Array, freedom: float) -> Array:
    """The evidence that two classes are one, [N, N], from noisy means.

    Classes are taken as normally distributed around a common centre, and means as normally distributed around their
    class: the model of probabilistic linear discriminant analysis. The distribution of classes is estimated from all
    means together.

    Args:
        means: the mean of each class, [N, D].
        variance: of each mean, in units of the covariance of single images, [N].
        inside: the covariance of single images of a class, [D, D].
        freedom: the number of independent images that it was estimated from. With few of them some directions seem to
            vary less than they do, so its diagonal is added in proportion D / freedom.
    """
    white = np.linalg.solve(_root(inside, freedom), means.T).T
    weight = 1 / variance / (1 / variance).sum()
    offset = white - weight @ white
    between = (offset.T * weight) @ offset - (weight @ variance) * np.eye(offset.shape[1])
    # Estimated from N means in D dimensions: with few of them, noise would look like differences between classes.
    trust = len(means) / (len(means) + between.shape[1])
    even = max(np.trace(between) / between.shape[1], _LEAST)
    spread, directions = np.linalg.eigh(trust * between + (1 - trust) * even * np.eye(between.shape[1]))
    places, spread = offset @ directions[:, spread > 0], spread[spread > 0]
    scores = np.zeros((len(means), len(means)))
    for at, share in zip(places.T, spread, strict=True):
        total = share + variance
        product = np.outer(total, total)
        determinant = product - share**2
        square = at**2
        together = np.outer(square, total) + np.outer(total, square) - 2 * share * np.outer(at, at)
        apart = square / total
        scores -= (together / determinant - apart[:, None] - apart + np.log(determinant) - np.log(product)) / 2
    return scores


def _means(extra: Tensors, there: torch.Tensor) -> tuple[Array, Array]:
    """The means of the classes where `there` is true, [N, D], and their variances in units of single images, [N]."""
    chosen = extra[MEANS].double().cpu()[there].numpy()
    return chosen[:, :-1], chosen[:, -1].clip(_SUREST, 1 / _SUREST)


def _within(extra: Tensors, there: torch.Tensor) -> tuple[dict[int, Array], dict[int, float]]:
    """For each client with a class: the covariance of its images within classes, and its images minus its classes.

    The declared variances of the means give the number of images.
    """
    images = 1 / extra[MEANS][:, :, -1].double().cpu().clamp(_SUREST, 1 / _SUREST)
    known = there.any(1).nonzero().flatten().tolist()
    freedom = {k: float((images[k][there[k]] - 1).clamp_min(0).sum()) + _LEAST for k in known}
    return {k: covariance(extra[SPREAD][k]).numpy() for k in known}, freedom


def _pooled(covariances: dict[int, Array], freedom: dict[int, float]) -> tuple[Array, float]:
    """The mean of the clients' covariances, weighted by what they were estimated from; and the sum of the weights."""
    total = sum(freedom.values())
    shares = np.array([freedom[k] / total for k in covariances])
    return np.einsum("k,kij->ij", shares, np.stack([*covariances.values()])), total


def _root(inside: Array, freedom: float) -> Array:
    """The Cholesky factor of a covariance; with few images some directions seem to vary less than they do."""
    diagonal = np.diag(inside) + _FLOOR * np.diag(inside).mean() + _LEAST
    return np.linalg.cholesky(inside + np.diag((len(inside) / freedom) * diagonal))
