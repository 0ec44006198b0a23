"""Statistics of the images of each class, by which a server matches the classes of different clients.

Every client computes the same random features of its training images: 64 random 3 x 3 filters, ReLU, means on a 3 x 3
grid, square roots, and a random projection to 128 numbers. Where training mirrors images, so do the features: they are
the mean of those of an image and of its mirror image. A client sends the mean of each class and the covariance of
images within classes. No image, label or name of a class is sent.
"""

import math

import torch
import torch.nn.functional as F

from factorized_fl.core.classes import MEANS, SPREAD
from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.views import Tensors

FEATURES = 128
_FILTERS, _SIDE, _GRID = 64, 3, 3
_BATCH = 500
_FLOOR = 1e-6  # added to the variances, relative to their mean, where images do not vary in some direction


def random_features(inputs: torch.Tensor, seed: int, mirrored: bool = False) -> torch.Tensor:
    """Features of inputs as the network receives them, float32 [n, FEATURES]; equal seeds give equal features.

    Images are [n, C, H, W]; other inputs are floats of any shape [n, ...]. Raises UserError for whole numbers.
    With `mirrored`, an image and its mirror image have the same features.
    """
    if not inputs.is_floating_point():
        raise UserError("align = 'statistics' cannot describe inputs that are whole numbers: set align = 'classifier'.")
    rng = torch_rng(seed, "class features")
    if inputs.dim() == 4:
        filters = torch.randn(_FILTERS, inputs.shape[1], _SIDE, _SIDE, generator=rng)
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None, None]
    else:
        size = inputs[0].numel()
        filters = torch.randn(_FILTERS * _GRID**2, size, generator=rng) / math.sqrt(size)
    projection = torch.linalg.qr(torch.randn(_FILTERS * _GRID**2, FEATURES, generator=rng))[0].to(inputs)
    filters = filters.to(inputs)

    def of_images(some: torch.Tensor) -> torch.Tensor:
        maps = F.relu(F.conv2d(some, filters, padding=_SIDE // 2))
        # Square roots are nearer to a normal distribution, which the server assumes, than means of a ReLU are.
        return F.adaptive_avg_pool2d(maps, _GRID).flatten(1).sqrt()

    found = []
    for some in inputs.split(_BATCH):
        if inputs.dim() == 4:
            wide = (of_images(some) + of_images(some.flip(3))) / 2 if mirrored else of_images(some)
        else:
            wide = F.relu(some.flatten(1) @ filters.T)
        found.append(wide @ projection)
    return torch.cat(found)


def describe_classes(
    features: torch.Tensor, labels: torch.Tensor, most: int, noise: float, generator: torch.Generator
) -> Tensors:
    """The payloads of one client: MEANS [most, FEATURES + 1] and SPREAD [FEATURES * (FEATURES + 1) / 2].

    A row of MEANS is the mean of a class and its variance in units of the variance of single images, which is 1 / n for
    n images; a class without images has a row of zeros. SPREAD is the lower triangle of the covariance within classes.
    With `noise` the means get Gaussian noise with that share of the deviation of single images, which the second number
    declares.
    """
    rows = features.double().cpu()
    labels = labels.cpu()
    counts = torch.bincount(labels, minlength=most).to(rows)
    there = counts > 0
    means = torch.zeros(most, rows.shape[1], dtype=rows.dtype).index_add_(0, labels, rows)
    means = means / counts.clamp_min(1)[:, None]
    inside = rows - means[labels]
    freedom = len(rows) - int(there.sum())
    if freedom <= 0:  # with one image of each class take the covariance of all images
        inside, freedom = rows - rows.mean(0), max(1, len(rows) - 1)
    spread = inside.T @ inside / freedom
    if noise:
        shape = torch.linalg.cholesky(spread + _FLOOR * spread.diagonal().mean() * torch.eye(len(spread)))
        drawn = torch.randn(most, len(spread), generator=generator, dtype=rows.dtype)
        means = means + noise * there[:, None] * (drawn @ shape.T)
    variance = torch.where(there, 1 / counts.clamp_min(1) + noise**2, 0.0)
    lower = torch.tril_indices(len(spread), len(spread))
    return {MEANS: torch.cat([means, variance[:, None]], 1).float(), SPREAD: spread[lower[0], lower[1]].float()}


def covariance(spread: torch.Tensor) -> torch.Tensor:
    """The covariance of a lower triangle as `describe_classes` gives it: float64 [FEATURES, FEATURES].

    Negative eigenvalues, which no images have, become zero.
    """
    size = (math.isqrt(8 * len(spread) + 1) - 1) // 2
    matrix = torch.zeros(size, size, dtype=torch.float64)
    lower = torch.tril_indices(size, size)
    matrix[lower[0], lower[1]] = spread.double().cpu()
    values, vectors = torch.linalg.eigh(matrix + matrix.tril(-1).T)
    return (vectors * values.clamp_min(0)) @ vectors.T
