"""Triton kernels: batch normalisation with ReLU for several clients at once.

The activations of the clients' lanes are stored side by side or one after the other: the input at row r (a pixel of an
image), lane g and channel c is at ``r * row_stride + g * lane_stride + c``, the result at
``r * out_stride + g * out_lane_stride + c``. Mode POOL returns the maximum of each 2 x 2 block of pixels; mode PLAIN
returns all pixels and may add a residual.

Sums are computed in two stages of fixed order, relative to the channel's first value: this makes them deterministic
and accurate enough in float32.
"""

import triton
import triton.language as tl

PLAIN, POOL = 0, 1
ROWS, CHANNELS = 64, 64  # of a tile
MOST_PARTS = 256  # of a sum over rows
FEW = 16  # channels per program in the kernels that add up the parts
# Rows of a tile, unrolled tiles and number of programs of the sums: the fastest of some seventy choices per layer.
SUMS, GRADIENT_SUMS, POOL_GRADIENT_SUMS = (64, 4, 528), (32, 4, 1056), (16, 8, 1056)


@triton.jit
def _corner(pooled, H: tl.constexpr, W: tl.constexpr):
    """Return the first row of each 2 x 2 block."""
    b = pooled // ((H // 2) * (W // 2))
    y = (pooled // (W // 2)) % (H // 2)
    x = pooled % (W // 2)
    return (b * H + 2 * y) * W + 2 * x


@triton.jit
def channel_sums(
    x, partial, firsts, count, row_stride, lane_stride, width, per_program,
    C: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum (x - x0) and its square per channel over this program's rows; x0 is the channel's first value."""
    part, block = tl.program_id(0), tl.program_id(1)
    lane, channel = block // (C // BC), (block % (C // BC)) * BC + tl.arange(0, BC)
    base = x + lane.to(tl.int64) * lane_stride + channel
    first = tl.load(base).to(tl.float32)
    total = tl.zeros([BM, BC], tl.float32)
    square = tl.zeros([BM, BC], tl.float32)
    for start in range(0, per_program, BM * UNROLL):
        for more in tl.static_range(UNROLL):  # several loads at the same time
            rows = part * per_program + start + more * BM + tl.arange(0, BM)
            inside = (rows < count)[:, None]
            value = tl.load(base[None, :] + (rows * row_stride)[:, None], mask=inside, other=0.0).to(tl.float32)
            value = tl.where(inside, value - first[None, :], 0.0)
            total += value
            square += value * value
    out = partial + part * (2 * width) + lane * C + channel
    tl.store(out, tl.sum(total, 0))
    tl.store(out + width, tl.sum(square, 0))
    if part == 0:
        tl.store(firsts + lane * C + channel, first)


@triton.jit
def _add_parts(partial, parts, width, at, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    inside = (part < parts)[:, None]
    places = partial + (part * (2 * width))[:, None] + at[None, :]
    first = tl.sum(tl.load(places, mask=inside, other=0.0), 0)
    second = tl.sum(tl.load(places + width, mask=inside, other=0.0), 0)
    return first, second


@triton.jit
def store_moments(
    firsts, partial, mean, rstd, running_mean, running_var, count, width, parts, momentum, eps,
    BC: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Store mean and inverse standard deviation from the partial sums, and update the running statistics."""
    at = tl.program_id(0) * BC + tl.arange(0, BC)
    total, square = _add_parts(partial, parts, width, at, PARTS)
    shift = total / count
    variance = tl.maximum(square / count - shift * shift, 0.0)
    value = tl.load(firsts + at) + shift
    tl.store(mean + at, value)
    tl.store(rstd + at, 1.0 / tl.sqrt(variance + eps))
    old = tl.load(running_mean + at)
    tl.store(running_mean + at, old + momentum * (value - old))
    old = tl.load(running_var + at)
    tl.store(running_var + at, old + momentum * (variance * (count / (count - 1.0)) - old))


@triton.jit
def _activation(x, at, inside, mean, rstd, gamma, beta):
    """Return the normalised value and the input of the ReLU."""
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    hat = (value - mean) * rstd
    return hat, hat * gamma + beta


@triton.jit
def _place(mean, rstd, gamma, beta, C: tl.constexpr, BC: tl.constexpr):
    """Return the lane and the channels of this program, these channels among those of all lanes, and their norm."""
    block = tl.program_id(1)
    lane, channel = block // (C // BC), (block % (C // BC)) * BC + tl.arange(0, BC)
    at = lane * C + channel
    m, r = tl.load(mean + at)[None, :], tl.load(rstd + at)[None, :]
    g, b = tl.load(gamma + at)[None, :], tl.load(beta + at)[None, :]
    return lane.to(tl.int64), channel[None, :], at, m, r, g, b


@triton.jit
def normalise_rows(
    x, y, residual, mean, rstd, gamma, beta,
    count, row_stride, lane_stride, out_stride, out_lane_stride, residual_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr, RESIDUAL: tl.constexpr,
    BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Normalise, apply the ReLU, and pool or add the residual; `count` is the number of output rows."""
    lane, column, at, m, r, g, b = _place(mean, rstd, gamma, beta, C, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (rows < count)[:, None]
    x += lane * lane_stride
    y += lane * out_lane_stride
    if MODE == 1:
        corner = _corner(rows, H, W)
        _, out = _activation(x, (corner * row_stride)[:, None] + column, inside, m, r, g, b)
        _, other = _activation(x, ((corner + 1) * row_stride)[:, None] + column, inside, m, r, g, b)
        out = tl.maximum(out, other)
        _, other = _activation(x, ((corner + W) * row_stride)[:, None] + column, inside, m, r, g, b)
        out = tl.maximum(out, other)
        _, other = _activation(x, ((corner + W + 1) * row_stride)[:, None] + column, inside, m, r, g, b)
        out = tl.maximum(out, other)
    else:
        _, out = _activation(x, (rows * row_stride)[:, None] + column, inside, m, r, g, b)
    out = tl.maximum(out, 0.0)
    if RESIDUAL:
        there = (rows * residual_stride)[:, None] + at[None, :]
        out += tl.load(residual + there, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + (rows * out_stride)[:, None] + column, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _pool_gradient(x, gradient, corner, column, row_stride, inside, m, r, g, b, W: tl.constexpr):
    """Return the four normalised values of a block and their gradients; the first of the largest receives it all."""
    h0, a0 = _activation(x, (corner * row_stride)[:, None] + column, inside, m, r, g, b)
    h1, a1 = _activation(x, ((corner + 1) * row_stride)[:, None] + column, inside, m, r, g, b)
    h2, a2 = _activation(x, ((corner + W) * row_stride)[:, None] + column, inside, m, r, g, b)
    h3, a3 = _activation(x, ((corner + W + 1) * row_stride)[:, None] + column, inside, m, r, g, b)
    top = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
    gradient = tl.where(top > 0, gradient, 0.0)
    d0 = tl.where(a0 == top, gradient, 0.0)
    left = tl.where(a0 == top, 0.0, gradient)
    d1 = tl.where(a1 == top, left, 0.0)
    left = tl.where(a1 == top, 0.0, left)
    d2 = tl.where(a2 == top, left, 0.0)
    d3 = tl.where(a2 == top, 0.0, left)
    return h0, h1, h2, h3, d0, d1, d2, d3


@triton.jit
def gradient_sums(
    x, dy, partial, mean, rstd, gamma, beta,
    count, row_stride, lane_stride, out_stride, out_lane_stride, width, per_program,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr,
    BC: tl.constexpr, BM: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum, per channel, the gradient before the ReLU, and this gradient times the normalised value."""
    part = tl.program_id(0)
    lane, column, at, m, r, g, b = _place(mean, rstd, gamma, beta, C, BC)
    x += lane * lane_stride
    dy += lane * out_lane_stride
    total = tl.zeros([BM, BC], tl.float32)
    product = tl.zeros([BM, BC], tl.float32)
    for start in range(0, per_program, BM * UNROLL):
        for more in tl.static_range(UNROLL):
            rows = part * per_program + start + more * BM + tl.arange(0, BM)
            inside = (rows < count)[:, None]
            gradient = tl.load(dy + (rows * out_stride)[:, None] + column, mask=inside, other=0.0).to(tl.float32)
            if MODE == 1:
                h0, h1, h2, h3, d0, d1, d2, d3 = _pool_gradient(
                    x, gradient, _corner(rows, H, W), column, row_stride, inside, m, r, g, b, W
                )
                total += d0 + d1 + d2 + d3
                product += d0 * h0 + d1 * h1 + d2 * h2 + d3 * h3
            else:
                hat, entering = _activation(x, (rows * row_stride)[:, None] + column, inside, m, r, g, b)
                gradient = tl.where(entering > 0, gradient, 0.0)
                total += gradient
                product += gradient * hat
    out = partial + part * (2 * width) + at
    tl.store(out, tl.sum(total, 0))
    tl.store(out + width, tl.sum(product, 0))


@triton.jit
def add_up(partial, dbeta, dgamma, width, parts, BC: tl.constexpr, PARTS: tl.constexpr):
    """Add up the partial sums to the gradients of the affine parameters."""
    at = tl.program_id(0) * BC + tl.arange(0, BC)
    total, product = _add_parts(partial, parts, width, at, PARTS)
    tl.store(dbeta + at, total)
    tl.store(dgamma + at, product)


@triton.jit
def _input_gradient(hat, gradient, scale, total, product):
    return scale * (gradient - total - hat * product)


@triton.jit
def gradient_input(
    x, dy, dx, dresidual, mean, rstd, gamma, beta, dbeta, dgamma,
    count, samples, row_stride, lane_stride, out_stride, out_lane_stride, residual_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr, RESIDUAL: tl.constexpr,
    BC: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the input in the input's order; `samples` values were averaged per channel."""
    lane, column, at, m, r, g, b = _place(mean, rstd, gamma, beta, C, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (rows < count)[:, None]
    total, product = tl.load(dbeta + at)[None, :] / samples, tl.load(dgamma + at)[None, :] / samples
    x += lane * lane_stride
    dx += lane * lane_stride
    dy += lane * out_lane_stride
    kind = dx.dtype.element_ty
    gradient = tl.load(dy + (rows * out_stride)[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        tl.store(dresidual + (rows * residual_stride)[:, None] + at[None, :], gradient.to(kind), mask=inside)
    if MODE == 1:
        corner = _corner(rows, H, W)
        h0, h1, h2, h3, d0, d1, d2, d3 = _pool_gradient(x, gradient, corner, column, row_stride, inside, m, r, g, b, W)
        out = dx + (corner * row_stride)[:, None] + column
        tl.store(out, _input_gradient(h0, d0, g * r, total, product).to(kind), mask=inside)
        tl.store(out + row_stride, _input_gradient(h1, d1, g * r, total, product).to(kind), mask=inside)
        tl.store(out + W * row_stride, _input_gradient(h2, d2, g * r, total, product).to(kind), mask=inside)
        tl.store(out + (W + 1) * row_stride, _input_gradient(h3, d3, g * r, total, product).to(kind), mask=inside)
    else:
        source = (rows * row_stride)[:, None] + column
        hat, entering = _activation(x, source, inside, m, r, g, b)
        gradient = tl.where(entering > 0, gradient, 0.0)
        tl.store(dx + source, _input_gradient(hat, gradient, g * r, total, product).to(kind), mask=inside)


def tiles(count: int) -> int:
    """Return the number of tiles that cover `count` rows."""
    return triton.cdiv(count, ROWS)


def split_rows(count: int, blocks: int, bundle: int, programs: int) -> tuple[int, int]:
    """Return the number of parts in which `count` rows are summed, and the rows per part, a multiple of `bundle`.

    With `blocks` blocks of channels, this gives about `programs` programs in total.
    """
    parts = max(1, min(MOST_PARTS, triton.cdiv(count, bundle), triton.cdiv(programs, blocks)))
    per_program = triton.cdiv(triton.cdiv(count, parts), bundle) * bundle
    return triton.cdiv(count, per_program), per_program
