"""The first layer of several lanes: a matrix product of patches and weights, batch normalisation and ReLU.

Three channels are too few for tensor cores, but the 27 numbers of a pixel's 3 x 3 patch are enough. A patch holds
these, then a one, then zeros up to PATCH numbers; a weight holds 27 numbers and zeros.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from factorized_fl.engine.resnet9_cuda import first_kernels as first
from factorized_fl.engine.resnet9_cuda import input_kernels
from factorized_fl.engine.resnet9_cuda import norm_kernels as k
from factorized_fl.engine.resnet9_cuda.norm import Shape, moments

PATCH = 32  # numbers in a patch
ONE = 27  # the position of the one
_PIXELS = 64  # pixels per program that extracts patches


def make_patches(pixels: Tensor) -> Tensor:
    """Return the 3 x 3 patches of all pixels of [G, B, 3, H, W]: [G, B * H * W, PATCH]."""
    lanes, batch, _, height, width = pixels.shape
    out = pixels.new_empty(lanes, batch * height * width, PATCH)
    grid = (lanes * batch, height * width // _PIXELS)
    input_kernels.extract_patches[grid](pixels, out, H=height, W=width, ONE=ONE, PATCH=PATCH, BM=_PIXELS)
    return out


def patch_weight(weight: Tensor) -> Tensor:
    """Return weights [G, C, 3, 3, 3], channels last, in the order of patches: [G, C, PATCH]."""
    return pad(weight.flatten(2), (0, PATCH - ONE))


def convolve_and_normalise(patches: Tensor, weight: Tensor, norm: Sequence[Tensor], shape: Shape) -> Tensor:
    """Return relu((patches weight^T - mean) * rstd * gamma + beta); `norm` holds mean, rstd, gamma and beta."""
    y = shape.new_result(patches)
    parts, per_program = _split(shape)
    first.normalised_product[(parts, shape.blocks)](patches, weight, y, *norm, shape.rows, per_program, **_sizes(shape))
    return y


class FirstLayer(torch.autograd.Function):
    """Apply the layer to patches [G, rows, P] and weights [G, C, P] with the batch's statistics.

    The result is STACKED. Its gradient is expected in 2 x 2 blocks of pixels, the order in which conv2 returns it.
    """

    @staticmethod
    def forward(ctx: Any, shape: Shape, patches: Tensor, weight: Tensor, *norm: Tensor) -> Tensor:
        """Compute the statistics and the result; `norm` holds the same tensors as in `NormReLU.forward`."""
        width, (parts, per_program) = shape.all_channels, _split(shape)
        sums, firsts = (torch.empty(*size, device=weight.device) for size in ((parts, 2, width), (width,)))
        first.product_sums[(parts, shape.blocks)](
            patches, weight, sums, firsts, shape.rows, width, per_program, **_sizes(shape)
        )
        norm = *moments(firsts, sums, norm[:2], shape), *norm[2:]
        ctx.save_for_backward(patches, weight, *norm)
        ctx.shape = shape
        return convolve_and_normalise(patches, weight, norm, shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute all gradients from two sums over the rows.

        These are the sum of the gradient before the ReLU times the patch, and the sum of the patch times itself. They
        suffice because x is a product of weight and patch, and x - mean is one with -mean at the position of the one.
        """
        patches, weight, *norm = ctx.saved_tensors
        mean, rstd, gamma, _ = norm
        shape: Shape = ctx.shape
        parts, per_program = _split(shape)
        pieces = [torch.empty(shape.lanes, parts, n, PATCH, device=dy.device) for n in (shape.channels, PATCH)]
        first.patch_gradients[(parts, shape.blocks)](
            patches, weight, dy.contiguous(), pieces[0], *norm, shape.rows, per_program,
            H=shape.height, W=shape.width, **_sizes(shape),
        )  # fmt: skip
        first.patch_squares[(parts, shape.lanes)](patches, pieces[1], shape.rows, per_program, PATCH=PATCH, BM=k.ROWS)
        gradients, squares = (piece.sum(1) for piece in pieces)
        centred = weight.to(torch.float32, copy=True)
        centred[..., ONE] = -mean.view_as(gamma)
        rstd = rstd.view_as(gamma)
        dbeta = gradients[..., ONE]
        dgamma = rstd * (centred * gradients).sum(2)
        along = centred * (dgamma * rstd).unsqueeze(2)
        along[..., ONE].add_(dbeta)
        dweight = torch.baddbmm(gradients, along, squares, alpha=-1 / shape.rows)
        dweight *= (gamma * rstd).unsqueeze(2)
        return None, None, dweight.to(weight.dtype), None, None, dgamma, dbeta


def _split(shape: Shape) -> tuple[int, int]:
    """Return the number of parts into which the rows are divided, and the rows per part, a multiple of a tile."""
    per_program = -(-k.tiles(shape.rows) // k.MOST_PARTS) * k.ROWS
    return -(-shape.rows // per_program), per_program


def _sizes(shape: Shape) -> dict[str, int]:
    return {"C": shape.channels, "PATCH": PATCH, "BC": k.CHANNELS, "BM": k.ROWS}
