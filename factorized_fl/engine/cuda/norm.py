"""Batch normalisation and ReLU of several lanes as one differentiable operation on Triton kernels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from factorized_fl.engine.cuda import norm_kernels as k

MOMENTUM, EPS = 0.1, 1e-5  # PyTorch's defaults, which our models keep

# How the activations of the lanes lie in memory.
PACKED = "packed"  # one tensor [B, H, W, G * C]
STACKED = "stacked"  # one tensor [G, ...], each lane by itself
APART = "apart"  # one tensor per lane


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
    def all_channels(self) -> int:
        """Of all lanes."""
        return self.lanes * self.channels

    @property
    def out_rows(self) -> int:
        """Pixels of the result."""
        return self.rows // 4 if self.mode == k.POOL else self.rows

    def new_result(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Room for the result, channels last."""
        half = 2 if self.mode == k.POOL else 1
        size = (self.batch, self.height // half, self.width // half)
        if self.result == PACKED:
            return (like.new_empty(*size, self.all_channels),)
        return tuple(like.new_empty(*size, self.channels) for _ in range(self.lanes))

    def launches(self) -> Iterator["Launch"]:
        """All lanes in one launch where neither side lies apart, else one launch per lane."""
        wide = self.channels if self.source != PACKED else self.all_channels
        out = self.channels if self.result != PACKED else self.all_channels
        if APART not in (self.source, self.result):
            stride = self.channels if self.source == PACKED else self.rows * self.channels
            yield Launch(0, self.all_channels, wide, stride, out)
            return
        for lane in range(self.lanes):
            yield Launch(lane, self.channels, wide, 0, out)


@dataclass(frozen=True)
class Launch:
    """The first lane of a launch, its channels, and the strides of a row, of a lane and of a row of the result."""

    lane: int
    channels: int
    row: int
    stride: int
    out: int

    @property
    def blocks(self) -> int:
        """Tiles side by side."""
        return self.channels // k.CHANNELS


def _at(tensors: Sequence[torch.Tensor], how: str, lane: int, channels: int) -> torch.Tensor:
    """The memory at which a lane begins."""
    if how == APART:
        return tensors[lane]
    if how == STACKED:
        return tensors[0][lane]
    return _from(tensors[0], lane * channels)


def _from(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    return tensor.view(-1)[offset:] if offset else tensor


def statistics(
    xs: Sequence[torch.Tensor], running_mean: torch.Tensor, running_var: torch.Tensor, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation of every channel; the running statistics follow."""
    new = partial(torch.empty, device=running_mean.device)
    width = shape.all_channels
    mean, rstd, firsts = (new(width) for _ in range(3))
    launches = list(shape.launches())
    parts, per_program = k.split(shape.rows, launches[0].blocks)
    sums = new(parts, 2, width)
    for launch in launches:
        offset = launch.lane * shape.channels
        k.sums[(parts, launch.blocks)](
            _at(xs, shape.source, launch.lane, shape.channels), _from(sums, offset), _from(firsts, offset), shape.rows,
            launch.row, launch.stride, width, per_program,
            C=shape.channels, BC=k.CHANNELS, BM=k.SUM_ROWS, UNROLL=k.UNROLL,
        )  # fmt: skip
    k.moments[(width // k.FEW,)](
        firsts, sums, mean, rstd, running_mean, running_var, shape.rows, width, parts, MOMENTUM, EPS,
        BC=k.FEW, PARTS=k.MOST_PARTS,
    )  # fmt: skip
    return mean, rstd


def affine_gradients(
    xs: Sequence[torch.Tensor], dys: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], shape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gamma and beta; `saved` are gamma, beta, mean and rstd."""
    gamma, beta, mean, rstd = saved
    width = shape.all_channels
    launches = list(shape.launches())
    parts, per_program = k.split(shape.out_rows, launches[0].blocks)
    sums = torch.empty(parts, 2, width, device=gamma.device)
    for launch in launches:
        offset = launch.lane * shape.channels
        k.gradient_sums[(parts, launch.blocks)](
            _at(xs, shape.source, launch.lane, shape.channels), _at(dys, shape.result, launch.lane, shape.channels),
            *(_from(t, offset) for t in (sums, mean, rstd, gamma, beta)), shape.out_rows,
            launch.row, launch.stride, launch.out, width, per_program,
            C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode,
            BC=k.CHANNELS, BM=k.GRADIENT_ROWS, UNROLL=k.UNROLL,
        )  # fmt: skip
    dbeta, dgamma = torch.empty_like(beta), torch.empty_like(gamma)
    k.add_up[(width // k.FEW,)](sums, dbeta, dgamma, width, parts, BC=k.FEW, PARTS=k.MOST_PARTS)
    return dgamma, dbeta


class NormReLU(torch.autograd.Function):
    """y = relu(normalise(x)) [+ residual] with the batch's statistics; x and y are one tensor or one per lane."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: Shape,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        residual: torch.Tensor | None,
        *xs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Statistics in two stages, then everything else in one pass."""
        mean, rstd = statistics(xs, running_mean, running_var, shape)
        ctx.save_for_backward(gamma, beta, mean, rstd, *xs)
        ctx.shape, ctx.residual = shape, residual is not None
        return normalise(xs, mean, rstd, gamma, beta, residual, shape)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Two sums per channel, then the gradient in one pass."""
        gamma, beta, mean, rstd, *xs = ctx.saved_tensors
        shape: Shape = ctx.shape
        dys = tuple(dy.contiguous() for dy in dys)
        dgamma, dbeta = affine_gradients(xs, dys, (gamma, beta, mean, rstd), shape)
        dxs = tuple(torch.empty_like(x) for x in xs)
        whole = (shape.batch, shape.height, shape.width, shape.all_channels)
        dresidual = dys[0].new_empty(whole) if ctx.residual and shape.result != PACKED else None
        for launch in shape.launches():
            x, dx = (_at(side, shape.source, launch.lane, shape.channels) for side in (xs, dxs))
            dy = _at(dys, shape.result, launch.lane, shape.channels)
            offset = launch.lane * shape.channels
            k.gradient_input[(k.tiles(shape.out_rows), launch.blocks)](
                x, dy, dx, dx if dresidual is None else _from(dresidual, offset),
                *(_from(t, offset) for t in (mean, rstd, gamma, beta, dbeta, dgamma)),
                shape.out_rows, float(shape.rows), launch.row, launch.stride, launch.out, shape.all_channels,
                C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=dresidual is not None,
                BC=k.CHANNELS, BM=k.ROWS,
            )  # fmt: skip
        if ctx.residual and dresidual is None:
            dresidual = dys[0]
        return None, None, None, dgamma, dbeta, dresidual, *dxs


class PatchNormReLU(torch.autograd.Function):
    """The first layer whole: patches [G, M, P] times weights [G, P, C], normalised, ReLU, one result per lane.

    Images need no gradient, so backwards the gradient of the product is never written down: it goes straight on to
    the weights' gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shape: Shape,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        patches: torch.Tensor,
        weight: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Product, statistics, result."""
        x = torch.bmm(patches, weight)
        mean, rstd = statistics((x,), running_mean, running_var, shape)
        ctx.save_for_backward(gamma, beta, mean, rstd, x, patches)
        ctx.shape = shape
        return normalise((x,), mean, rstd, gamma, beta, None, shape)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Two sums per channel, then the weights' gradient in parts."""
        gamma, beta, mean, rstd, x, patches = ctx.saved_tensors
        shape: Shape = ctx.shape
        dys = tuple(dy.contiguous() for dy in dys)
        dgamma, dbeta = affine_gradients((x,), dys, (gamma, beta, mean, rstd), shape)
        per_program = -(-k.tiles(shape.rows) // k.MOST_PARTS) * k.ROWS
        parts = -(-shape.rows // per_program)
        pieces = torch.empty(shape.lanes, parts, patches.shape[2], shape.channels, device=x.device)
        for lane, dy in enumerate(dys):
            offset = lane * shape.channels
            k.patch_gradient[(parts,)](
                x[lane], dy, patches[lane], pieces[lane],
                *(_from(t, offset) for t in (mean, rstd, gamma, beta, dbeta, dgamma)),
                shape.rows, float(shape.rows), per_program, C=shape.channels, PATCH=patches.shape[2], BM=k.ROWS,
            )  # fmt: skip
        return None, None, None, dgamma, dbeta, None, pieces.sum(1).to(patches.dtype)


def normalise(
    xs: Sequence[torch.Tensor],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    residual: torch.Tensor | None,
    shape: Shape,
) -> tuple[torch.Tensor, ...]:
    """relu((x - mean) * rstd * gamma + beta) [+ residual]."""
    ys = shape.new_result(xs[0])
    for launch in shape.launches():
        offset = launch.lane * shape.channels
        y = _at(ys, shape.result, launch.lane, shape.channels)
        k.apply[(k.tiles(shape.out_rows), launch.blocks)](
            _at(xs, shape.source, launch.lane, shape.channels), y, y if residual is None else _from(residual, offset),
            _from(mean, offset), _from(rstd, offset), _from(gamma, offset), _from(beta, offset), shape.out_rows,
            launch.row, launch.stride, launch.out, shape.all_channels,
            C=shape.channels, H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=residual is not None,
            BC=k.CHANNELS, BM=k.ROWS,
        )  # fmt: skip
    return ys
