"""Batches on the GPU: gather, augment and normalise in one kernel."""

import torch

from factorized_fl.engine.resnet9_cuda import input_kernels as k
from factorized_fl.tasks.augment import plan

COLUMNS = 14


def plan_rows(draws: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The plan as rows [n, COLUMNS]: box 4, flip 1, factors 3, turn 1, order 4, grey 1."""
    todo = plan(draws, height, width)
    parts = [todo.box, todo.flip[:, None], todo.factors, todo.turn[:, None], todo.order, todo.grey[:, None]]
    return torch.cat(parts, 1)


def plain_row(height: int, width: int) -> torch.Tensor:
    """The plan that leaves an image as it is."""
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
    """Write normalised images of the pool at `positions`, changed as `rows` say, into `out` [..., 3, H, W]."""
    height, width = pool.shape[2:]
    k.augment[(positions.numel(),)](
        pool, positions, rows, out, *mean, *std, H=height, W=width, COLUMNS=COLUMNS, JITTER=jitter, num_warps=4
    )
    return out
