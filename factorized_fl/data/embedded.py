"""Three image domains that need no download: handwritten digits, drawn shapes and drawn textures.

They serve to try the software in seconds. Position, size, colour, contrast, noise and distracting marks vary, so that
a client with few images can gain from the images of the others.
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from factorized_fl.data.images import ImageSet, Pixels, check_shape

_Array = NDArray[np.float64]
_Labels = NDArray[np.int64]
_Rng = np.random.Generator
_Drawing = Callable[[_Array, _Array], _Array]

_IMAGES = 1800
_LUMINANCE = np.array([0.299, 0.587, 0.114])


@cache  # a comparison has many runs, which must not change the images
def digits(size: int = 16, channels: int = 3, seed: int = 0) -> ImageSet:
    """Return scikit-learn's 1,797 handwritten digits (8x8), enlarged and slightly moved: dark ink on pale paper."""
    from sklearn.datasets import load_digits

    check_shape(size, channels)
    rng = np.random.default_rng([seed, 0])
    source = load_digits()
    ink = np.stack([_place(digit, size, rng) for digit in source.images])[:, None]
    n = len(ink)
    paper = _colours(rng, n, 0.8, 0.95, spread=0.06)
    pen = _colours(rng, n, 0.1, 0.35, spread=0.2)
    pictures = paper + (pen - paper) * ink * rng.uniform(0.75, 1.0, (n, 1, 1, 1))
    return _image_set("digits", pictures, source.target, map(str, range(10)), 0.06, channels, rng)


@cache
def shapes(size: int = 16, channels: int = 3, seed: int = 0) -> ImageSet:
    """Return bright filled shapes, randomly turned and scaled, on a dark shaded background with random dots."""
    check_shape(size, channels)
    rng = np.random.default_rng([seed, 1])
    labels = np.arange(_IMAGES) % len(_SHAPES)
    x, y = _grid(size)
    angle, radius = _uniform(rng, 0, 2 * np.pi), _uniform(rng, 0.55, 0.8)
    u, v = _turn(x - _uniform(rng, -0.15, 0.15), y - _uniform(rng, -0.15, 0.15), angle)
    distance = _by_class(_SHAPES, labels, u / radius, v / radius) * radius

    shade = 1 + 0.4 * (_uniform(rng, -1, 1) * x + _uniform(rng, -1, 1) * y)
    pictures = _colours(rng, _IMAGES, 0.1, 0.25, spread=0.1) * shade[:, None]
    pictures = _paint(pictures, distance, _colours(rng, _IMAGES, 0.55, 0.85, spread=0.4))
    for _ in range(3):
        dot = np.hypot(x - _uniform(rng, -1, 1), y - _uniform(rng, -1, 1)) - _uniform(rng, 0.02, 0.16)
        pictures = _paint(pictures, dot, _colours(rng, _IMAGES, 0.3, 0.7, spread=0.4))
    return _image_set("shapes", pictures, labels, _SHAPES, 0.06, channels, rng)


@cache
def textures(size: int = 16, channels: int = 3, seed: int = 0) -> ImageSet:
    """Return patterns in two muted colours that fill the image, tilted, warped and crossed by a scratch."""
    check_shape(size, channels)
    rng = np.random.default_rng([seed, 2])
    labels = np.arange(_IMAGES) % len(_TEXTURES)
    x, y = _grid(size)
    warp = 0.08 * np.sin(np.pi * (_uniform(rng, 1, 2) * x + _uniform(rng, 1, 2) * y) + _uniform(rng, 0, 6))
    u, v = _turn(x + warp, y - warp, _uniform(rng, -0.26, 0.26))
    cycles = _uniform(rng, 1.1, 2.2)
    shift = _uniform(rng, -0.5, 0.5), _uniform(rng, -0.5, 0.5)
    waves = _by_class(_TEXTURES, labels, cycles * (u + shift[0]), cycles * (v + shift[1]))

    middle = _uniform(rng, 0.45, 0.65)[:, None]
    contrast = (_uniform(rng, 0.08, 0.25) * rng.choice([-1, 1], (_IMAGES, 1, 1)))[:, None]
    tints = [_colours(rng, _IMAGES, 0, 0, spread=0.12) for _ in range(2)]
    blend = (1 + np.clip(waves, -1, 1)[:, None]) / 2
    pictures = middle + contrast * (2 * blend - 1) + tints[0] * blend + tints[1] * (1 - blend)
    across, _ = _turn(x, y, _uniform(rng, 0, 2 * np.pi))
    scratch = np.abs(across - _uniform(rng, -0.8, 0.8)) - 0.03
    pictures = _paint(pictures, scratch, _colours(rng, _IMAGES, 0.2, 0.8, spread=0.1))
    return _image_set("textures", pictures, labels, _TEXTURES, 0.09, channels, rng)


def _star(x: _Array, y: _Array) -> _Array:
    tip, dent = np.pi / 5, 0.45
    folded = np.arctan2(y, x) % (2 * tip) - tip
    along, aside = np.hypot(x, y) * np.cos(folded), np.hypot(x, y) * np.abs(np.sin(folded))
    edge = np.array([np.cos(tip) - dent, np.sin(tip)]) / np.hypot(np.cos(tip) - dent, np.sin(tip))
    return (along - dent) * edge[1] - aside * edge[0]


def _triangle(x: _Array, y: _Array) -> _Array:
    sides = [np.cos(turn) * x + np.sin(turn) * y for turn in (0, 2 * np.pi / 3, 4 * np.pi / 3)]
    return np.maximum.reduce(sides) - 0.55


def _cross(x: _Array, y: _Array) -> _Array:
    across, upright = (np.maximum(np.abs(a) - 1, np.abs(b) - 0.28) for a, b in ((x, y), (y, x)))
    return np.minimum(across, upright)


def _blobs(x: _Array, y: _Array) -> _Array:
    waves = [np.sin(2.2 * (np.cos(a) * x + np.sin(a) * y) + 5 * a * a) for a in (0.3, 1.2, 2.0, 2.9, 4.1)]
    return 1.6 * np.add.reduce(waves) / 2


# Signed distance from the outline of a shape of radius 1: negative inside.
_SHAPES: dict[str, _Drawing] = {
    "disc": lambda x, y: np.hypot(x, y) - 0.9,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - 0.78,
    "triangle": _triangle,
    "cross": _cross,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) - 0.24,
    "star": _star,
}

# Height of a pattern, clipped to -1 .. 1; one unit is about a wavelength.
_TEXTURES: dict[str, _Drawing] = {
    "horizontal": lambda x, y: np.sin(2 * np.pi * y),
    "vertical": lambda x, y: np.sin(2 * np.pi * x),
    "diagonal": lambda x, y: np.sin(2 * np.pi * (x + y) * 0.7),
    "checkerboard": lambda x, y: 4 * np.sin(1.6 * np.pi * x) * np.sin(1.6 * np.pi * y),
    "dots": lambda x, y: 3 * (0.26 - np.hypot((0.9 * x) % 1 - 0.5, (0.9 * y) % 1 - 0.5)) / 0.26,
    "rings": lambda x, y: np.sin(2 * np.pi * np.hypot(x, y)),
    "gradient": lambda x, y: 0.6 * (x - 0.4 * y),
    "blobs": _blobs,
}


def _by_class(drawings: dict[str, _Drawing], labels: _Labels, x: _Array, y: _Array) -> _Array:
    result = np.empty_like(x)
    for label, draw in enumerate(drawings.values()):
        result[labels == label] = draw(x[labels == label], y[labels == label])
    return result


def _place(digit: _Array, size: int, rng: _Rng) -> _Array:
    """Return one digit, enlarged with a small random turn, scaling and shift; 1 is full ink."""
    angle, scale = rng.uniform(-0.15, 0.15), 8 / size / rng.uniform(0.85, 1.0)
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    shift_x, shift_y = rng.uniform(-0.05, 0.05, 2) * size + size / 2
    towards_source = (cos, sin, 4 - cos * shift_x - sin * shift_y, -sin, cos, 4 + sin * shift_x - cos * shift_y)
    image = Image.fromarray((digit * 15.9).astype(np.uint8))
    placed = image.transform((size, size), Image.Transform.AFFINE, towards_source, Image.Resampling.BICUBIC)
    return np.asarray(placed, np.float64) / 255


def _uniform(rng: _Rng, low: float, high: float) -> _Array:
    return rng.uniform(low, high, (_IMAGES, 1, 1))


def _grid(size: int) -> tuple[_Array, _Array]:
    """Return the pixel centres in -1 .. 1 as [1, 1, size] and [1, size, 1]."""
    centres = (np.arange(size) + 0.5) * 2 / size - 1
    return centres[None, None, :], centres[None, :, None]


def _turn(x: _Array, y: _Array, angle: _Array) -> tuple[_Array, _Array]:
    return np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x


def _colours(rng: _Rng, n: int, low: float, high: float, spread: float) -> _Array:
    """Return random colours [n, 3, 1, 1] of a given luminance, so that contrasts in colour are contrasts in grey."""
    tint = rng.uniform(-spread, spread, (n, 3))
    tint -= (tint @ _LUMINANCE)[:, None]
    return (rng.uniform(low, high, (n, 1)) + tint)[:, :, None, None]


def _paint(pictures: _Array, distance: _Array, colour: _Array) -> _Array:
    """Return the pictures, filled with the colour where the distance is negative; the edge is one pixel wide."""
    cover = np.clip(0.5 - distance * pictures.shape[-1] / 2, 0, 1)[:, None]
    return pictures + (colour - pictures) * cover


def _image_set(
    name: str, pictures: _Array, labels: _Labels, classes: Iterable[str], noise: float, channels: int, rng: _Rng
) -> ImageSet:
    noisy = pictures + rng.normal(0, noise, pictures.shape)
    if channels == 1:
        noisy = np.einsum("nchw,c->nhw", noisy, _LUMINANCE)[:, None]
    images: Pixels = (np.clip(noisy, 0, 1) * 255).round().astype(np.uint8)
    return ImageSet(name, torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), tuple(classes))
