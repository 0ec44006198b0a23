"""Triton kernels that prepare the inputs of convolutions: augmented images, their patches, and weights."""

import triton
import triton.language as tl


@triton.jit
def extract_patches(
    pixels, out, H: tl.constexpr, W: tl.constexpr, ONE: tl.constexpr, PATCH: tl.constexpr, BM: tl.constexpr
):
    """Write the 3 x 3 patch of every pixel of [n, 3, H, W] as a row: numbers in (tap, channel) order, a one, zeros."""
    image = tl.program_id(0)
    pixel, column = tl.program_id(1) * BM + tl.arange(0, BM), tl.arange(0, PATCH)
    channel, tap = column % 3, column // 3
    y = (pixel // W)[:, None] + (tap // 3)[None, :] - 1
    x = (pixel % W)[:, None] + (tap % 3)[None, :] - 1
    inside = (column < ONE)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    value = tl.load(pixels + image * (3 * H * W) + channel[None, :] * (H * W) + y * W + x, mask=inside, other=0.0)
    value = tl.where((column == ONE)[None, :], 1.0, value)
    tl.store(out + (image * (H * W) + pixel)[:, None] * PATCH + column[None, :], value)


@triton.jit
def lay_out(source, out, inputs, BACK: tl.constexpr, TAPS: tl.constexpr, T: tl.constexpr, BI: tl.constexpr):
    """Copy weights [G, O, I, taps] to the convolutions' order, [G, O, taps, I], or, with BACK, the other way."""
    row = tl.program_id(0)
    i, t = tl.program_id(1) * BI + tl.arange(0, BI), tl.arange(0, T)
    inside = (t < TAPS)[:, None] & (i < inputs)[None, :]
    here = (row * inputs + i)[None, :] * TAPS + t[:, None]
    there = (row * TAPS + t)[:, None] * inputs + i[None, :]
    value = tl.load(source + (there if BACK else here), mask=inside, other=0.0)
    tl.store(out + (here if BACK else there), value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rank_one(mu, u, v, out, outputs, inputs, TAPS: tl.constexpr, T: tl.constexpr, BI: tl.constexpr):
    """Compute u v^T + mu [G, O, I, taps] in the convolutions' order, [G, O, taps, I], and type."""
    row = tl.program_id(0)
    i, t = tl.program_id(1) * BI + tl.arange(0, BI), tl.arange(0, T)
    inside = (t < TAPS)[:, None] & (i < inputs)[None, :]
    factor = tl.load(u + (row // outputs) * TAPS + t, mask=t < TAPS, other=0.0)
    scale = tl.load(v + row * inputs + i, mask=i < inputs, other=0.0)
    weight = tl.load(mu + (row * inputs + i)[None, :] * TAPS + t[:, None], mask=inside, other=0.0)
    weight += factor[:, None] * scale[None, :]
    place = (row * TAPS + t)[:, None] * inputs + i[None, :]
    tl.store(out + place, weight.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rank_one_gradient(
    dw, u, v, dmu, dv, du_parts, outputs, inputs, TAPS: tl.constexpr, T: tl.constexpr, BI: tl.constexpr
):
    """Compute the gradients of mu and v, and each program's part of u's, from the weight's [G, O, taps, I]."""
    row, block = tl.program_id(0), tl.program_id(1)
    i, t = block * BI + tl.arange(0, BI), tl.arange(0, T)
    inside = (t < TAPS)[:, None] & (i < inputs)[None, :]
    factor = tl.load(u + (row // outputs) * TAPS + t, mask=t < TAPS, other=0.0)
    scale = tl.load(v + row * inputs + i, mask=i < inputs, other=0.0)
    place = (row * TAPS + t)[:, None] * inputs + i[None, :]
    gradient = tl.load(dw + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(dmu + (row * inputs + i)[None, :] * TAPS + t[:, None], gradient, mask=inside)
    tl.store(dv + row * inputs + i, tl.sum(gradient * factor[:, None], 0), mask=i < inputs)
    part = du_parts + (row * tl.num_programs(1) + block) * TAPS + t
    tl.store(part, tl.sum(gradient * scale[None, :], 1), mask=t < TAPS)


@triton.jit
def _bilinear(image, y0, y1, fy, x0, x1, fx, W: tl.constexpr):
    top = tl.load(image + y0 * W + x0).to(tl.float32) * (1 - fx) + tl.load(image + y0 * W + x1).to(tl.float32) * fx
    low = tl.load(image + y1 * W + x0).to(tl.float32) * (1 - fx) + tl.load(image + y1 * W + x1).to(tl.float32) * fx
    return (top * (1 - fy) + low * fy) / 255.0


@triton.jit
def _hue_channel(offset: tl.constexpr, hue, value, chroma):
    k = offset + hue
    k = k - 6.0 * tl.floor(k / 6.0)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)


@triton.jit
def augment_images(
    pool, positions, plan, out, mean0, mean1, mean2, std0, std1, std2,
    H: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, JITTER: tl.constexpr,
):  # fmt: skip
    """Crop, flip, colour and normalise one image per program; `plan_augmentation` lists the columns of the plan."""
    n = tl.program_id(0)
    image = pool + tl.load(positions + n) * (3 * H * W)
    row = plan + n * COLUMNS
    pixel = tl.arange(0, H * W)
    y, x = pixel // W, pixel % W
    top, height, left, width = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    x = tl.where(tl.load(row + 4) > 0, W - 1 - x, x)
    sy = top + tl.minimum(tl.maximum((y + 0.5) * (height / H) - 0.5, 0.0), height - 1)
    sx = left + tl.minimum(tl.maximum((x + 0.5) * (width / W) - 0.5, 0.0), width - 1)
    y0, x0 = tl.floor(sy).to(tl.int32), tl.floor(sx).to(tl.int32)
    fy, fx = sy - y0, sx - x0
    y1, x1 = tl.minimum(y0 + 1, H - 1), tl.minimum(x0 + 1, W - 1)
    red = _bilinear(image, y0, y1, fy, x0, x1, fx, W)
    green = _bilinear(image + H * W, y0, y1, fy, x0, x1, fx, W)
    blue = _bilinear(image + 2 * H * W, y0, y1, fy, x0, x1, fx, W)
    if JITTER:
        turn = tl.load(row + 8)
        for step in range(4):
            operation = tl.load(row + 9 + step)
            if operation == 3:
                value = tl.maximum(red, tl.maximum(green, blue))
                chroma = value - tl.minimum(red, tl.minimum(green, blue))
                safe = tl.where(chroma > 0, chroma, 1.0)
                hue = tl.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
                hue = tl.where(value == red, (green - blue) / safe, hue) + 6 * turn
                red = _hue_channel(5, hue, value, chroma)
                green = _hue_channel(3, hue, value, chroma)
                blue = _hue_channel(1, hue, value, chroma)
            else:
                factor = tl.load(row + 5 + operation.to(tl.int32))
                grey = 0.2989 * red + 0.587 * green + 0.114 * blue
                target = tl.where(operation == 1, tl.sum(grey, 0) / (H * W), grey)
                target = tl.where(operation == 0, 0.0, target)
                red = tl.minimum(tl.maximum(target + factor * (red - target), 0.0), 1.0)
                green = tl.minimum(tl.maximum(target + factor * (green - target), 0.0), 1.0)
                blue = tl.minimum(tl.maximum(target + factor * (blue - target), 0.0), 1.0)
        colourless = tl.load(row + 13) > 0
        grey = 0.2989 * red + 0.587 * green + 0.114 * blue
        red, green = tl.where(colourless, grey, red), tl.where(colourless, grey, green)
        blue = tl.where(colourless, grey, blue)
    to = out + n * (3 * H * W) + pixel
    kind = out.dtype.element_ty
    tl.store(to, ((red - mean0) / std0).to(kind))
    tl.store(to + H * W, ((green - mean1) / std1).to(kind))
    tl.store(to + 2 * H * W, ((blue - mean2) / std2).to(kind))
