"""Triton kernels: the first convolution with its normalisation and ReLU, for several clients at once.

The convolution is a product of patches [G, rows, PATCH] with weights [G, C, PATCH]. It is made anew wherever it is
needed and never written down: with three colours in a pixel that costs next to nothing, while the result, the network's
largest activation, would be read in every pass. Every program takes some rows of one lane and one block of channels.
Sums are made as in `norm_kernels`.
"""

import triton
import triton.language as tl


@triton.jit
def _place(C: tl.constexpr, BC: tl.constexpr):
    """Lane and channels of this program."""
    block = tl.program_id(1)
    return (block // (C // BC)).to(tl.int64), (block % (C // BC)) * BC + tl.arange(0, BC)


@triton.jit
def _weights(weight, lane, channel, C: tl.constexpr, PATCH: tl.constexpr):
    """The lane's weights of these channels, [PATCH, channels]."""
    return tl.load(weight + (lane * C + channel)[None, :] * PATCH + tl.arange(0, PATCH)[:, None])


@triton.jit
def _patches(patches, rows, count, PATCH: tl.constexpr):
    """Patches [rows, PATCH], zeros behind the last."""
    at = (rows * PATCH)[:, None] + tl.arange(0, PATCH)[None, :]
    return tl.load(patches + at, mask=(rows < count)[:, None], other=0.0)


@triton.jit
def _product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def sums(
    patches,
    weight,
    partial,
    firsts,
    count,
    width,
    per_program,
    C: tl.constexpr,
    PATCH: tl.constexpr,
    BC: tl.constexpr,
    BM: tl.constexpr,
):
    """Per channel: sum of (x - x0) and of its square over some of the rows; x0 is the channel's first value."""
    part = tl.program_id(0)
    lane, channel = _place(C, BC)
    at = lane * C + channel
    patches += lane * count * PATCH
    own = _weights(weight, lane, channel, C, PATCH)
    first = tl.sum(tl.load(patches + tl.arange(0, PATCH)).to(tl.float32)[:, None] * own.to(tl.float32), 0)
    total = tl.zeros([BM, BC], tl.float32)
    square = tl.zeros([BM, BC], tl.float32)
    for start in range(0, per_program, BM):
        rows = part * per_program + start + tl.arange(0, BM)
        value = _product(_patches(patches, rows, count, PATCH), own) - first[None, :]
        value = tl.where((rows < count)[:, None], value, 0.0)
        total += value
        square += value * value
    out = partial + part * (2 * width) + at
    tl.store(out, tl.sum(total, 0))
    tl.store(out + width, tl.sum(square, 0))
    if part == 0:
        tl.store(firsts + at, first)


@triton.jit
def _norm(mean, rstd, gamma, beta, at):
    """What normalises these channels: scale and shift, each [1, channels]."""
    scale = tl.load(rstd + at) * tl.load(gamma + at)
    return scale[None, :], (tl.load(beta + at) - tl.load(mean + at) * scale)[None, :]


@triton.jit
def apply(
    patches,
    weight,
    y,
    mean,
    rstd,
    gamma,
    beta,
    count,
    per_program,
    C: tl.constexpr,
    PATCH: tl.constexpr,
    BC: tl.constexpr,
    BM: tl.constexpr,
):
    """Convolve, normalise, ReLU; the lanes of the result follow each other."""
    lane, channel = _place(C, BC)
    scale, shift = _norm(mean, rstd, gamma, beta, lane * C + channel)
    patches += lane * count * PATCH
    y += lane * count * C
    own = _weights(weight, lane, channel, C, PATCH)
    for start in range(0, per_program, BM):
        rows = tl.program_id(0) * per_program + start + tl.arange(0, BM)
        out = tl.maximum(_product(_patches(patches, rows, count, PATCH), own) * scale + shift, 0.0)
        to = y + (rows * C)[:, None] + channel[None, :]
        tl.store(to, out.to(y.dtype.element_ty), mask=(rows < count)[:, None])


@triton.jit
def _blocked(row, H: tl.constexpr, W: tl.constexpr):
    """Where a pixel lies when the four of each 2 x 2 block follow each other."""
    b = row // (H * W)
    y = (row // W) % H
    x = row % W
    return ((b * (H // 2) + y // 2) * (W // 2) + x // 2) * 4 + (y % 2) * 2 + x % 2


@triton.jit
def gradients(
    patches,
    weight,
    dy,
    out,
    mean,
    rstd,
    gamma,
    beta,
    count,
    per_program,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    PATCH: tl.constexpr,
    BC: tl.constexpr,
    BM: tl.constexpr,
):
    """Sums over some rows of the gradient behind the ReLU times the patch; dy comes in 2 x 2 blocks of pixels."""
    lane, channel = _place(C, BC)
    scale, shift = _norm(mean, rstd, gamma, beta, lane * C + channel)
    piece = lane * tl.num_programs(0) + tl.program_id(0)
    patches += lane * count * PATCH
    dy += lane * count * C
    own = _weights(weight, lane, channel, C, PATCH)
    total = tl.zeros([BC, PATCH], tl.float32)
    for start in range(0, per_program, BM):
        rows = tl.program_id(0) * per_program + start + tl.arange(0, BM)
        patch = _patches(patches, rows, count, PATCH)
        there = (_blocked(rows, H, W) * C)[:, None] + channel[None, :]
        gradient = tl.load(dy + there, mask=(rows < count)[:, None], other=0.0)
        passed = tl.where(_product(patch, own) * scale + shift > 0, gradient, 0.0).to(patch.dtype)
        total += _product(tl.trans(passed), patch)
    tl.store(out + (piece * C + channel)[:, None] * PATCH + tl.arange(0, PATCH)[None, :], total)


@triton.jit
def squares(patches, out, count, per_program, PATCH: tl.constexpr, BM: tl.constexpr):
    """Sums over some of the rows of a lane of the patch times itself, [PATCH, PATCH]."""
    lane, number = tl.program_id(1).to(tl.int64), tl.arange(0, PATCH)
    patches += lane * count * PATCH
    total = tl.zeros([PATCH, PATCH], tl.float32)
    for start in range(0, per_program, BM):
        patch = _patches(patches, tl.program_id(0) * per_program + start + tl.arange(0, BM), count, PATCH)
        total += _product(tl.trans(patch), patch)
    piece = lane * tl.num_programs(0) + tl.program_id(0)
    tl.store(out + (piece * PATCH + number)[:, None] * PATCH + number[None, :], total)
