"""Batches on the GPU: one kernel gathers, augments and normalises the images."""

import torch
from torch import Tensor

from factorized_fl.engine.resnet9_cuda import input_kernels as k

COLUMNS = 14  # of an augmentation plan


def plain_row(height: int, width: int) -> Tensor:
    """Return the row of an augmentation plan that leaves an image unchanged."""
    return torch.tensor([0.0, height, 0, width, 0, 1, 1, 1, 0, 0, 1, 2, 3, 0])


def make_batch(
    pool: Tensor, positions: Tensor, rows: Tensor, out: Tensor, moments: tuple[tuple[float, ...], ...], jitter: bool
) -> Tensor:
    """Write the pool's images at `positions`, augmented by `rows` and normalised, to `out` [..., 3, H, W].

    `moments` holds the channels' means and standard deviations.
    """
    (height, width), (mean, std) = pool.shape[2:], moments
    k.augment_images[(positions.numel(),)](
        pool, positions, rows, out, *mean, *std, H=height, W=width, COLUMNS=COLUMNS, JITTER=jitter, num_warps=4
    )
    return out
