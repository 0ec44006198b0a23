"""Weights of several lanes, rebuilt from their factors: [G, O, *kernel, I] in the type of the convolutions."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrize

from factorized_fl.core.views import Tensors
from factorized_fl.engine.resnet9_cuda import input_kernels as k
from factorized_fl.nn.factorized import RankOneSparse, weight_parts


class RankOneWeight(torch.autograd.Function):
    """Compute u v^T + mu for the layout "taps": one kernel rebuilds, casts and transposes, one computes gradients."""

    @staticmethod
    def forward(ctx: Any, mu: Tensor, u: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        """Return weights [G, O, h, w, I] from mu [G, O, I, h, w], u [G, 1, 1, h, w] and v [G, O, I, 1, 1]."""
        lanes, out, inp, height, width = mu.shape
        weight = torch.empty(lanes, out, height, width, inp, dtype=dtype, device=mu.device)
        ctx.save_for_backward(u, v)
        ctx.shape = mu.shape
        k.rank_one[_grid(mu.shape)](mu, u, v, weight, out, inp, **_tile(mu.shape))
        return weight

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: sums over taps for v; sums over channels, in two stages of fixed order, for u."""
        u, v = ctx.saved_tensors
        lanes, out, inp, height, width = ctx.shape
        rows, blocks = _grid(ctx.shape)
        dmu = torch.empty(ctx.shape, dtype=u.dtype, device=u.device)
        dv, parts = torch.empty_like(v), u.new_empty(lanes, out * blocks, height * width)
        k.rank_one_gradient[(rows, blocks)](dw.contiguous(), u, v, dmu, dv, parts, out, inp, **_tile(ctx.shape))
        return dmu, parts.sum(1).view_as(u), dv, None


class LaidOut(torch.autograd.Function):
    """Cast a weight [G, O, I, h, w] and move its input channels last in one kernel; the gradient in one more."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight as [G, O, h, w, I] of type `dtype`."""
        lanes, out, inp, height, width = ctx.shape = weight.shape
        ctx.dtype = weight.dtype
        laid = torch.empty(lanes, out, height, width, inp, dtype=dtype, device=weight.device)
        k.lay_out[_grid(ctx.shape)](weight.contiguous(), laid, inp, BACK=False, **_tile(ctx.shape))
        return laid

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient as [G, O, I, h, w] in the weight's own type."""
        dweight = torch.empty(ctx.shape, dtype=ctx.dtype, device=dw.device)
        k.lay_out[_grid(ctx.shape)](dw.contiguous(), dweight, ctx.shape[2], BACK=True, **_tile(ctx.shape))
        return dweight, None


def _tile(shape: torch.Size) -> dict[str, int]:
    taps, inp = shape[3] * shape[4], shape[2]
    return {"TAPS": taps, "T": triton.next_power_of_2(taps), "BI": min(64, triton.next_power_of_2(inp))}


def _grid(shape: torch.Size) -> tuple[int, int]:
    return shape[0] * shape[1], triton.cdiv(shape[2], _tile(shape)["BI"])


def layer_weights(model: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensors:
    """Return every layer's weight by the layer's name; that of a Linear layer stays [G, O, I] and float32."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weights[name] = _rebuild(name, module, tensors)
        elif isinstance(module, nn.Conv2d):
            weights[name] = _convolution(name, module, tensors, dtype)
    return weights


def _convolution(name: str, module: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    part = weight_parts(module)[0] if parametrize.is_parametrized(module) else None
    by_taps = isinstance(part, RankOneSparse) and part.has_mu and part.u.shape[:2] == (1, 1)
    if by_taps and module.training:  # in evaluation mode mu is pruned
        factors = (tensors[f"{name}.parametrizations.weight.{leaf}"] for leaf in ("original", "0.u", "0.v"))
        return RankOneWeight.apply(*factors, dtype)
    return LaidOut.apply(_rebuild(name, module, tensors), dtype)


def _rebuild(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a layer's weight [G, ...], its parametrisation applied to each lane."""
    if not parametrize.is_parametrized(module):
        return tensors[f"{name}.weight"]
    parts = weight_parts(module)
    own = {leaf: tensors[f"{name}.parametrizations.weight.{leaf}"] for leaf in parts.state_dict()}
    return vmap(lambda factors: functional_call(parts, factors, ()))(own)
