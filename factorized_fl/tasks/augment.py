"""The authors' augmentation as batched tensor operations, on the device of the images.

It consists of a random resized crop, a horizontal flip, colour jitter (0.4, 0.4, 0.2, 0.1) with probability 0.8 and
greyscale with probability 0.2. All randomness is passed in as uniform numbers (`draw`), so that the same numbers give
the same images on every device and in every engine.
"""

import math
from itertools import permutations

import torch
from torch import Tensor

TRIES = 10  # attempts to find a crop that fits, as in torchvision
DRAWS = 2 * TRIES + 10

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_JITTER, _STRENGTH = 0.8, (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation, hue
_GREYSCALE = 0.2
_LUMA = (0.2989, 0.587, 0.114)


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers [count, DRAWS], which determine the augmentation of `count` images."""
    return torch.rand(count, DRAWS, generator=generator)


def plan_augmentation(draws: Tensor, height: int, width: int) -> Tensor:
    """Return the plan of the augmentation of n images of this height and width, float32 [n, 14], from [n, DRAWS].

    The columns are top, height, left and width of the crop in whole pixels; 1 to mirror; brightness, contrast and
    saturation; hue as a share of the colour circle; the order of these four as 0 .. 3; and 1 to convert to greyscale.
    """
    rest = draws[:, 2 * TRIES :]
    chosen = rest[:, 7:8] < _JITTER
    strength = torch.tensor(_STRENGTH, device=draws.device)
    jitter = strength * (2 * rest[:, 3:7] - 1)
    orders = torch.tensor(list(permutations(range(4))), device=draws.device, dtype=draws.dtype)
    parts = [
        _boxes(draws[:, : 2 * TRIES], rest[:, 0:2], height, width),
        rest[:, 2:3] < 0.5,
        torch.where(chosen, 1 + jitter[:, :3], 1.0),
        torch.where(chosen, jitter[:, 3:], 0.0),
        orders[(rest[:, 8] * 24).long().clamp(max=23)],
        rest[:, 9:10] < _GREYSCALE,
    ]
    return torch.cat([part.to(draws.dtype) for part in parts], 1)


def augment(images: Tensor, draws: Tensor) -> Tensor:
    """Return uint8 images [n, C, H, W] augmented by their draws [n, DRAWS], as floats in [0, 1]."""
    plan = plan_augmentation(draws, *images.shape[-2:])
    box, flip, factors, turn, order, grey = plan.split((4, 1, 3, 1, 4, 1), 1)
    return _colour(_crop(images.float() / 255, box, flip), factors, turn, order, grey)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return float images in [0, 1], shifted by the mean and scaled by the deviation of each channel."""
    return (images - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)


def _boxes(draws: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Return, for each image, the first random box that fits, or else the largest centred box of an allowed ratio."""
    area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * draws[:, :TRIES])
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    ratio = torch.exp(low + (high - low) * draws[:, TRIES:])
    w, h = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    found = fits.any(1)
    w = torch.where(found, w.gather(1, first)[:, 0], min(width, round(height * _RATIO[1])))
    h = torch.where(found, h.gather(1, first)[:, 0], min(height, round(width / _RATIO[0])))
    top = torch.floor(torch.where(found, place[:, 0], 0.5) * (height - h + 1))
    left = torch.floor(torch.where(found, place[:, 1], 0.5) * (width - w + 1))
    return torch.stack([top, h, left, w], 1)


def _crop(images: Tensor, box: Tensor, flip: Tensor) -> Tensor:
    """Crop, resample and flip: bilinear resampling is separable, so each image needs one small matrix per axis."""
    top, h, left, w = box.unbind(1)
    rows = _resampler(top, h, images.shape[-2])
    columns = _resampler(left, w, images.shape[-1])
    columns = torch.where(flip.bool()[:, None], columns.flip(1), columns)
    return rows.unsqueeze(1) @ images @ columns.transpose(1, 2).unsqueeze(1)


def _resampler(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return matrices [n, size, size] that stretch pixels start .. start + length - 1 over the whole axis."""
    pixel = torch.arange(size, device=start.device, dtype=start.dtype)
    source = (pixel + 0.5) * (length / size).unsqueeze(1) - 0.5
    source = start.unsqueeze(1) + torch.minimum(source.clamp(min=0), (length - 1).unsqueeze(1))
    return (1 - (pixel - source.unsqueeze(2)).abs()).clamp(min=0)


def _colour(images: Tensor, factors: Tensor, turn: Tensor, order: Tensor, grey: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue in each image's own order, then convert some to greyscale."""
    if images.shape[1] != 3:
        return images
    out = images
    for step in range(4):
        operation = order[:, step].view(-1, 1, 1, 1)
        luma = _grey(out)
        target = torch.where(operation == 1, luma.mean((2, 3), keepdim=True), luma)
        target = torch.where(operation == 0, 0.0, target)
        factor = factors.gather(1, order[:, step : step + 1].long().clamp(max=2)).view(-1, 1, 1, 1)
        blended = (target + factor * (out - target)).clamp(0, 1)
        out = torch.where(operation == 3, _turn_hue(out, turn), blended)
    return torch.where(grey.bool().view(-1, 1, 1, 1), _grey(out), out)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).unsqueeze(1)


def _turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share of the colour circle; value and chroma (HSV) stay the same."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    hue = torch.where(value == red, (green - blue) / safe, hue) + 6 * turn.view(-1, 1, 1)
    places = (torch.remainder(offset + hue, 6) for offset in (5, 3, 1))
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in places], 1)
