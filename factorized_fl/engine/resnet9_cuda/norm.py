"""Batch normalisation and ReLU of several lanes as one differentiable operation on Triton kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from factorized_fl.engine.resnet9_cuda import norm_kernels as k

MOMENTUM, EPS = 0.1, 1e-5  # of BatchNorm; `supported` refuses models with other values

# The order of the activations of the lanes in memory.
PACKED = "packed"  # side by side: [B, H, W, G * C]
STACKED = "stacked"  # one after the other: [G, B, H, W, C]


@dataclass(frozen=True)
class Shape:
    """The activations to normalise: B images of H x W pixels in G lanes of C channels, and the order in memory."""

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
        """The pixels of all images."""
        return self.batch * self.height * self.width

    @property
    def out_rows(self) -> int:
        """The pixels of the result."""
        return self.rows // 4 if self.mode == k.POOL else self.rows

    @property
    def all_channels(self) -> int:
        """The channels of all lanes together."""
        return self.lanes * self.channels

    @property
    def blocks(self) -> int:
        """The number of tiles that cover all channels."""
        return self.all_channels // k.CHANNELS

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """The distances from row to row and from lane to lane, in the input and in the result."""
        packed, one = (self.all_channels, self.channels), self.channels
        source = packed if self.source == PACKED else (one, self.rows * one)
        return *source, *(packed if self.result == PACKED else (one, self.out_rows * one))

    def new_result(self, like: Tensor) -> Tensor:
        """Return an uninitialised tensor for the result, channels last."""
        half = 2 if self.mode == k.POOL else 1
        size = (self.batch, self.height // half, self.width // half)
        if self.result == PACKED:
            return like.new_empty(*size, self.all_channels)
        return like.new_empty(self.lanes, *size, self.channels)


def moments(firsts: Tensor, sums: Tensor, running: Sequence[Tensor], shape: Shape) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation, and update the running mean and variance.

    `sums` holds the sums of the differences to the channels' first values, `firsts`, and of their squares.
    """
    mean, rstd = torch.empty_like(firsts), torch.empty_like(firsts)
    k.store_moments[(len(firsts) // k.FEW,)](
        firsts, sums, mean, rstd, *running, shape.rows, len(firsts), len(sums), MOMENTUM, EPS,
        BC=k.FEW, PARTS=k.MOST_PARTS,
    )  # fmt: skip
    return mean, rstd


def affine_gradients(x: Tensor, dy: Tensor, norm: Sequence[Tensor], shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the gradients of gamma and beta; `norm` holds mean, rstd, gamma and beta."""
    width = shape.all_channels
    tile, unroll, programs = k.POOL_GRADIENT_SUMS if shape.mode == k.POOL else k.GRADIENT_SUMS
    parts, per_program = k.split_rows(shape.out_rows, shape.blocks, tile * unroll, programs)
    sums = torch.empty(parts, 2, width, device=x.device)
    k.gradient_sums[(parts, shape.blocks)](
        x, dy, sums, *norm, shape.out_rows, *shape.strides, width, per_program,
        C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, BC=k.CHANNELS, BM=tile, UNROLL=unroll,
    )  # fmt: skip
    dgamma, dbeta = (torch.empty_like(affine) for affine in norm[2:])
    k.add_up[(width // k.FEW,)](sums, dbeta, dgamma, width, parts, BC=k.FEW, PARTS=k.MOST_PARTS)
    return dgamma, dbeta


def normalise_lanes(x: Tensor, norm: Sequence[Tensor], residual: Tensor | None, shape: Shape) -> Tensor:
    """Return relu((x - mean) * rstd * gamma + beta) [+ residual], max-pooled if the shape's mode is POOL.

    `norm` holds mean, rstd, gamma and beta.
    """
    y = shape.new_result(x)
    k.normalise_rows[(k.tiles(shape.out_rows), shape.blocks)](
        x, y, y if residual is None else residual, *norm, shape.out_rows, *shape.strides, shape.all_channels,
        C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=residual is not None,
        BC=k.CHANNELS, BM=k.ROWS,
    )  # fmt: skip
    return y


class NormReLU(torch.autograd.Function):
    """Compute relu(batch_norm(x)) [+ residual] with the batch's statistics."""

    @staticmethod
    def forward(ctx: Any, shape: Shape, residual: Tensor | None, x: Tensor, *norm: Tensor) -> Tensor:
        """Compute the statistics in two stages, then the result in one pass.

        `norm` holds running mean, running variance, gamma and beta; the running statistics are updated.
        """
        tile, unroll, programs = k.SUMS
        parts, per_program = k.split_rows(shape.rows, shape.blocks, tile * unroll, programs)
        width = shape.all_channels
        sums, firsts = torch.empty(parts, 2, width, device=x.device), torch.empty(width, device=x.device)
        k.channel_sums[(parts, shape.blocks)](
            x, sums, firsts, shape.rows, *shape.strides[:2], width, per_program,
            C=shape.channels, BC=k.CHANNELS, BM=tile, UNROLL=unroll,
        )  # fmt: skip
        norm = *moments(firsts, sums, norm[:2], shape), *norm[2:]
        ctx.save_for_backward(x, *norm)
        ctx.shape, ctx.residual = shape, residual is not None
        return normalise_lanes(x, norm, residual, shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute two sums per channel, then the input's gradient in one pass."""
        x, *norm = ctx.saved_tensors
        shape: Shape = ctx.shape
        dy = dy.contiguous()
        dgamma, dbeta = affine_gradients(x, dy, norm, shape)
        dx = torch.empty_like(x)
        # The residual is PACKED: its gradient is the result's gradient, or a copy of that in packed order.
        dresidual = dy if ctx.residual else None
        copied = ctx.residual and shape.result != PACKED
        if copied:
            dresidual = dy.new_empty(shape.batch, shape.height, shape.width, shape.all_channels)
        k.gradient_input[(k.tiles(shape.out_rows), shape.blocks)](
            x, dy, dx, dresidual if copied else dx, *norm, dbeta, dgamma,
            shape.out_rows, float(shape.rows), *shape.strides, shape.all_channels,
            C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=copied,
            BC=k.CHANNELS, BM=k.ROWS,
        )  # fmt: skip
        return None, dresidual, dx, None, None, dgamma, dbeta
