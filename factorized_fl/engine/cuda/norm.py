"""Batch normalisation and ReLU of several lanes as one differentiable operation on Triton kernels."""

from dataclasses import dataclass
from typing import Any

import torch

from factorized_fl.engine.cuda import kernels as k

MOMENTUM, EPS = 0.1, 1e-5  # PyTorch's defaults, which our models keep


@dataclass(frozen=True)
class Shape:
    """Layout of what is to be normalised: B images of H x W pixels, G lanes of C channels."""

    batch: int
    height: int
    width: int
    lanes: int
    channels: int
    mode: int = k.PLAIN
    lanes_first: bool = False  # [G, rows, C] instead of [rows, G * C]

    @property
    def rows(self) -> int:
        """Pixels of all images."""
        return self.batch * self.height * self.width

    @property
    def strides(self) -> tuple[int, int]:
        """Of a row and of a lane."""
        if self.lanes_first:
            return self.channels, self.rows * self.channels
        return self.lanes * self.channels, self.channels

    @property
    def out_rows(self) -> int:
        """Rows that the apply kernel goes through."""
        return self.rows // 4 if self.mode == k.POOL else self.rows

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Of the output, channels last."""
        width = self.lanes * self.channels
        if self.mode == k.PLAIN:
            return self.batch, self.height, self.width, width
        return self.batch, self.height // 2, self.width // 2, width * (4 if self.mode == k.DEPTH else 1)

    @property
    def blocks(self) -> int:
        """Tiles side by side."""
        return self.lanes * self.channels // k.CHANNELS

    @property
    def layout(self) -> dict[str, int]:
        """What every kernel wants to know at compile time."""
        return {"C": self.channels, "BC": k.CHANNELS}


class NormReLU(torch.autograd.Function):
    """y = relu(normalise(x)) [+ residual], with the batch's statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        residual: torch.Tensor | None,
        shape: Shape,
    ) -> torch.Tensor:
        """Statistics in two stages, then everything else in one pass."""
        width = shape.lanes * shape.channels
        parts, per_program = k.split(shape.rows, shape.blocks)
        partial = torch.empty(parts, 2, width, device=x.device)
        mean, rstd = torch.empty(width, device=x.device), torch.empty(width, device=x.device)
        row, lane = shape.strides
        k.sums[(parts, shape.blocks)](
            x, partial, shape.rows, row, lane, shape.lanes, per_program, BM=k.ROWS, **shape.layout
        )
        k.moments[(shape.blocks,)](
            x, partial, mean, rstd, running_mean, running_var, shape.rows, lane, shape.lanes, parts, MOMENTUM, EPS,
            **shape.layout,
        )  # fmt: skip
        y = normalise(x, mean, rstd, gamma, beta, residual, shape)
        ctx.save_for_backward(x, gamma, beta, mean, rstd)
        ctx.shape, ctx.has_residual = shape, residual is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Two sums per channel, then the gradient in one pass."""
        x, gamma, beta, mean, rstd = ctx.saved_tensors
        shape: Shape = ctx.shape
        dy = dy.contiguous()
        width = shape.lanes * shape.channels
        parts, per_program = k.split(shape.out_rows, shape.blocks)
        partial = torch.empty(parts, 2, width, device=x.device)
        dbeta, dgamma = torch.empty_like(beta), torch.empty_like(gamma)
        dx = torch.empty_like(x)
        row, lane = shape.strides
        common = {"H": shape.height, "W": shape.width, "MODE": shape.mode, "BM": k.ROWS, **shape.layout}
        k.gradient_sums[(parts, shape.blocks)](
            x, dy, partial, mean, rstd, gamma, beta, shape.out_rows, row, lane, shape.lanes, per_program, **common
        )
        k.add_up[(shape.blocks,)](partial, dbeta, dgamma, shape.lanes, parts, **shape.layout)
        k.gradient_input[k.grid_of(shape.out_rows, shape.blocks)](
            x, dy, dx, mean, rstd, gamma, beta, dbeta, dgamma, shape.out_rows, float(shape.rows), row, lane,
            shape.lanes, **common,
        )  # fmt: skip
        return dx, dgamma, dbeta, None, None, dy if ctx.has_residual else None, None


def normalise(
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    residual: torch.Tensor | None,
    shape: Shape,
) -> torch.Tensor:
    """relu((x - mean) * rstd * gamma + beta) [+ residual] in the place the shape's mode says."""
    y = torch.empty(shape.out_shape, dtype=x.dtype, device=x.device)
    row, lane = shape.strides
    k.apply[k.grid_of(shape.out_rows, shape.blocks)](
        x, y, residual if residual is not None else y, mean, rstd, gamma, beta, shape.out_rows, row, lane, shape.lanes,
        H=shape.height, W=shape.width, MODE=shape.mode, RESIDUAL=residual is not None, BM=k.ROWS, **shape.layout,
    )  # fmt: skip
    return y
