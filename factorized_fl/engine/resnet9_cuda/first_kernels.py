"""Triton kernels: the first convolution with its normalisation and ReLU, for several clients at once.

The convolution is a product of patches [G, rows, PATCH] with weights [G, C, PATCH]. Every kernel that needs it
recomputes it, because storing the network's largest activation and reading it in every pass would cost more than the
product over three channels. Every program processes some rows of one lane and one block of channels. Sums are
computed as in `norm_kernels`.
"""

import triton
import triton.language as tl


@triton.jit
def _place(C: tl.constexpr, BC: tl.constexpr):
    """Return lane and channels of this program."""
    block = tl.program_id(1)
    return (block // (C // BC)).to(tl.int64), (block % (C // BC)) * BC + tl.arange(0, BC)


@triton.jit
def _weights(weight, lane, channel, C: tl.constexpr, PATCH: tl.constexpr):
    """Load the lane's weights of these channels, [PATCH, channels]."""
    return tl.load(weight + (lane * C + channel)[None, :] * PATCH + tl.arange(0, PATCH)[:, None])


@triton.jit
def _patches(patches, rows, count, PATCH: tl.constexpr):
    """Load patches [rows, PATCH], with zeros for rows beyond the last."""
    at = (rows * PATCH)[:, None] + tl.arange(0, PATCH)[None, :]
    return tl.load(patches + at, mask=(rows < count)[:, None], other=0.0)


@triton.jit
def _product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def product_sums(
    patches, weight, partial, firsts, count, width, per_program,
    C: tl.constexpr, PATCH: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Sum (x - x0) and its square per channel over this program's rows; x0 is the channel's first value."""
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
    """Return the scale and the shift that normalise these channels, each [1, channels]."""
    scale = tl.load(rstd + at) * tl.load(gamma + at)
    return scale[None, :], (tl.load(beta + at) - tl.load(mean + at) * scale)[None, :]


@triton.jit
def normalised_product(
    patches, weight, y, mean, rstd, gamma, beta, count, per_program,
    C: tl.constexpr, PATCH: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Convolve, normalise and apply the ReLU; the lanes of the result are stored one after the other."""
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
    """Return the position of a pixel in an order in which the four pixels of each 2 x 2 block are adjacent."""
    b = row // (H * W)
    y = (row // W) % H
    x = row % W
    return ((b * (H // 2) + y // 2) * (W // 2) + x // 2) * 4 + (y % 2) * 2 + x % 2


@triton.jit
def patch_gradients(
    patches, weight, dy, out, mean, rstd, gamma, beta, count, per_program,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PATCH: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Sum the gradient before the ReLU times the patch over this program's rows; dy is in 2 x 2 blocks of pixels."""
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
def patch_squares(patches, out, count, per_program, PATCH: tl.constexpr, BM: tl.constexpr):
    """Sum the outer product of the patch with itself, [PATCH, PATCH], over this program's rows of one lane."""
    lane, number = tl.program_id(1).to(tl.int64), tl.arange(0, PATCH)
    patches += lane * count * PATCH
    total = tl.zeros([PATCH, PATCH], tl.float32)
    for start in range(0, per_program, BM):
        patch = _patches(patches, tl.program_id(0) * per_program + start + tl.arange(0, BM), count, PATCH)
        total += _product(tl.trans(patch), patch)
    piece = lane * tl.num_programs(0) + tl.program_id(0)
    tl.store(out + (piece * PATCH + number)[:, None] * PATCH + number[None, :], total)
