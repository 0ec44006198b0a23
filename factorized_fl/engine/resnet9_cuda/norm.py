"""Batch normalisation and ReLU of several lanes as one differentiable operation on Triton kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from factorized_fl.engine.resnet9_cuda import norm_kernels as k
from factorized_fl.nn.models import NORM_EPS, NORM_MOMENTUM

# How the activations of the lanes lie in memory.
PACKED = "packed"  # side by side: [B, H, W, G * C]
STACKED = "stacked"  # one after the other: [G, B, H, W, C]


@dataclass(frozen=True)
class Shape:
    """What is to be normalised: B images of H x W pixels, G lanes of C channels; and where it comes from and goes."""

    batch: int
    height: int
    width: int
    lanes: int
    channels: int
    mode: int = k.PLAIN
    source: str = PACKED
    result: str = PACKED

    @property
    def rows(self) -> int:
        """Pixels of all images."""
        return self.batch * self.height * self.width

    @property
    def out_rows(self) -> int:
        """Pixels of the result."""
        return self.rows // 4 if self.mode == k.POOL else self.rows

    @property
    def all_channels(self) -> int:
        """Of all lanes."""
        return self.lanes * self.channels

    @property
    def blocks(self) -> int:
        """Tiles side by side."""
        return self.all_channels // k.CHANNELS

    @property
    def strides(self) -> tuple[int, int]:
        """From row to row and from lane to lane of what is normalised."""
        return self._strides(self.source, self.rows)

    @property
    def out_strides(self) -> tuple[int, int]:
        """The same of the result."""
        return self._strides(self.result, self.out_rows)

    def _strides(self, how: str, rows: int) -> tuple[int, int]:
        return (self.all_channels, self.channels) if how == PACKED else (self.channels, rows * self.channels)

    def new_result(self, like: torch.Tensor) -> torch.Tensor:
        """Room for the result, channels last."""
        half = 2 if self.mode == k.POOL else 1
        size = (self.batch, self.height // half, self.width // half)
        if self.result == PACKED:
            return like.new_empty(*size, self.all_channels)
        return like.new_empty(self.lanes, *size, self.channels)


def statistics(
    x: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation of every channel; the running statistics follow."""
    tile, unroll, programs = k.SUMS
    parts, per_program = k.split(shape.rows, shape.blocks, tile * unroll, programs)
    width = shape.all_channels
    sums, firsts = torch.empty(parts, 2, width, device=x.device), torch.empty(width, device=x.device)
    k.sums[(parts, shape.blocks)](
        x, sums, firsts, shape.rows, *shape.strides, width, per_program,
        C=shape.channels, BC=k.CHANNELS, BM=tile, UNROLL=unroll,
    )  # fmt: skip
    return moments(firsts, sums, running_mean, running_var, shape)


def moments(
    firsts: torch.Tensor, sums: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation from the sums of deviations from the channels' first values, and of their squares."""
    mean, rstd = torch.empty_like(firsts), torch.empty_like(firsts)
    k.moments[(len(firsts) // k.FEW,)](
        firsts, sums, mean, rstd, running_mean, running_var, shape.rows, len(firsts), len(sums), NORM_MOMENTUM,
        NORM_EPS, BC=k.FEW, PARTS=k.MOST_PARTS,
    )  # fmt: skip
    return mean, rstd


def affine_gradients(
    x: torch.Tensor, dy: torch.Tensor, saved: Sequence[torch.Tensor], shape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gamma and beta; `saved` are mean, rstd, gamma and beta."""
    width = shape.all_channels
    tile, unroll, programs = k.POOL_GRADIENT_SUMS if shape.mode == k.POOL else k.GRADIENT_SUMS
    parts, per_program = k.split(shape.out_rows, shape.blocks, tile * unroll, programs)
    sums = torch.empty(parts, 2, width, device=x.device)
    k.gradient_sums[(parts, shape.blocks)](
        x, dy, sums, *saved, shape.out_rows, *shape.strides, *shape.out_strides, width, per_program,
        C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, BC=k.CHANNELS, BM=tile, UNROLL=unroll,
    )  # fmt: skip
    _, _, gamma, beta = saved
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(beta)
    k.add_up[(width // k.FEW,)](sums, dbeta, dgamma, width, parts, BC=k.FEW, PARTS=k.MOST_PARTS)
    return dgamma, dbeta


def normalise(
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    residual: torch.Tensor | None,
    shape: Shape,
) -> torch.Tensor:
    """relu((x - mean) * rstd * gamma + beta) [+ residual]."""
    y = shape.new_result(x)
    k.apply[(k.tiles(shape.out_rows), shape.blocks)](
        x, y, y if residual is None else residual, mean, rstd, gamma, beta, shape.out_rows,
        *shape.strides, *shape.out_strides, shape.all_channels,
        C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=residual is not None,
        BC=k.CHANNELS, BM=k.ROWS,
    )  # fmt: skip
    return y


class NormReLU(torch.autograd.Function):
    """y = relu(normalise(x)) [+ residual] with the batch's statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: Shape,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        residual: torch.Tensor | None,
        x: torch.Tensor,
    ) -> torch.Tensor:
        """Statistics in two stages, then everything else in one pass."""
        mean, rstd = statistics(x, running_mean, running_var, shape)
        ctx.save_for_backward(mean, rstd, gamma, beta, x)
        ctx.shape, ctx.residual = shape, residual is not None
        return normalise(x, mean, rstd, gamma, beta, residual, shape)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Two sums per channel, then the gradient in one pass."""
        *saved, x = ctx.saved_tensors
        shape: Shape = ctx.shape
        dy = dy.contiguous()
        dgamma, dbeta = affine_gradients(x, dy, saved, shape)
        dx = torch.empty_like(x)
        # The residual lies packed: its gradient is the result's, or a copy of it in that order.
        dresidual = dy if ctx.residual else None
        copied = ctx.residual and shape.result != PACKED
        if copied:
            dresidual = dy.new_empty(shape.batch, shape.height, shape.width, shape.all_channels)
        k.gradient_input[(k.tiles(shape.out_rows), shape.blocks)](
            x, dy, dx, dresidual if copied else dx, *saved, dbeta, dgamma,
            shape.out_rows, float(shape.rows), *shape.strides, *shape.out_strides, shape.all_channels,
            C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=copied,
            BC=k.CHANNELS, BM=k.ROWS,
        )  # fmt: skip
        return None, None, None, dgamma, dbeta, dresidual, dx
