"""Batches on the GPU: one kernel gathers, augments and normalises the images."""

import torch

from factorized_fl.engine.resnet9_cuda import input_kernels as k
from factorized_fl.tasks.augment import plan_augmentation

COLUMNS = 14


def plan_rows(draws: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the augmentation plan of draws as rows [n, COLUMNS]: box 4, flip 1, factors 3, turn 1, order 4, grey 1."""
    plan = plan_augmentation(draws, height, width)
    parts = [plan.box, plan.flip[:, None], plan.factors, plan.turn[:, None], plan.order, plan.grey[:, None]]
    return torch.cat(parts, 1)


def plain_row(height: int, width: int) -> torch.Tensor:
    """Return the row of the plan that leaves an image unchanged."""
    return torch.tensor([0.0, height, 0, width, 0, 1, 1, 1, 0, 0, 1, 2, 3, 0])


def make_batch(
    pool: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    jitter: bool,
) -> torch.Tensor:
    """Write the pool's images at `positions`, augmented by `rows` and normalised, to `out` [..., 3, H, W]."""
    height, width = pool.shape[2:]
    k.augment_images[(positions.numel(),)](
        pool, positions, rows, out, *mean, *std, H=height, W=width, COLUMNS=COLUMNS, JITTER=jitter, num_warps=4
    )
    return out
