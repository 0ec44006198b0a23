"""Labelled images in memory, and how one encoded picture becomes an array."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from factorized_fl.core.errors import UserError

Pixels = NDArray[np.uint8]

# Asking only these readers makes opening a WebP eight times faster than letting Pillow try all it has.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# Bytes below which handing the interpreter lock from thread to thread costs more than the threads win:
# a 32x32 image takes 0.13 ms on one thread and 0.2 ms on two.
_SMALL = 16_384
# Decoded images that may wait for their reader.
_IN_FLIGHT = 256
_WHITE_IS_ZERO = 0  # in a TIFF
_after_each: ContextVar[Callable[[], None]] = ContextVar("after_each", default=lambda: None)


class Unreadable(StrEnum):
    """Why a picture gives no pixels and what to do: a sentence that lacks only its beginning, the picture's name."""

    DAMAGED = "holds no readable image: repair or replace it"
    NO_WHITE = "has 32-bit or signed pixels, which do not say what is white: save it with 8 or 16 bits, unsigned"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A labelled set of equally sized images, decoded once: the raw material of a scenario."""

    name: str
    images: torch.Tensor
    """uint8 [N, C, H, W] with C = 1 or 3 and H = W"""
    labels: torch.Tensor
    """int64 [N], each in 0..len(classes)-1"""
    classes: tuple[str, ...]
    split: torch.Tensor | None = None
    """reserved: uint8 [N], 0 train, 1 validation, 2 test, where the source fixes a split"""

    def __post_init__(self) -> None:
        images, labels, split = self.images, self.labels, self.split
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) == 0:
            raise self._wrong(f"images must be uint8 [N, C, H, W], not {_describe(images)}")
        if images.shape[1] not in (1, 3) or images.shape[2] != images.shape[3]:
            raise self._wrong(f"images must be square with 1 or 3 channels, not {_describe(images)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise self._wrong(f"labels must be int64 [{len(images)}], not {_describe(labels)}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise self._wrong(f"labels run from {low} to {high}, but there are {len(self.classes)} classes")
        if split is not None and (split.dtype != torch.uint8 or split.shape != labels.shape):
            raise self._wrong(f"split must be uint8 [{len(images)}], not {_describe(split)}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return self.images.shape[-1]

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.images.shape[1]

    def _wrong(self, what: str) -> UserError:
        return UserError(f"The image set '{self.name}' is malformed: {what}.")


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def check_shape(size: int | None, channels: int) -> None:
    """Refuse an image size or a number of channels that no image set can have."""
    if channels not in (1, 3):
        raise UserError(f"Images have 1 channel (grey) or 3 (colour), not {channels}: choose 1 or 3.")
    if size is not None and size < 1:
        raise UserError(f"The image size must be a positive number of pixels, not {size}.")


def to_array(image: Image.Image, size: int | None, channels: int) -> Pixels:
    """Turn a picture into uint8 [C, H, W]: upright, alpha on white, cropped to a square of `size`.

    The centre square is kept, and resampled (antialiased bilinear) only where its side differs from `size`.
    With `size` None the picture keeps its own height and width.
    """
    if image.mode.startswith("I;16"):
        image = _to_eight_bits(image)
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    image = _flatten(image, "L" if channels == 1 else "RGB")
    if size is not None and image.width != image.height:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if size is not None and image.width != size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey, which Pillow would clip at 255; nor does it heed what says that 0 is white, or clear."""
    deep, tags = np.asarray(image), getattr(image, "tag_v2", {})  # the tags of a TIFF
    white = 2 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    grey = (deep.astype(np.uint32) * 255 // white).astype(np.uint8)
    if tags.get(ExifTags.Base.PhotometricInterpretation) == _WHITE_IS_ZERO:
        grey = 255 - grey
    if (clear := image.info.get("transparency")) is not None:
        grey[deep == clear] = 255
    scaled = Image.fromarray(grey)
    scaled.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
    return scaled


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def decode_each(
    sources: Sequence[bytes | Path | None], size: int | None, channels: int
) -> Iterator[Pixels | Unreadable]:
    """Decode encoded images (bytes or files) in order, or say why one cannot be.

    Large images and files are decoded on a few threads.
    """
    tell = _after_each.get()
    for decoded in _decode_in_order(sources, size, channels):
        tell()
        yield decoded


@contextmanager
def counting(tell: Callable[[int], None]) -> Iterator[None]:
    """While this lasts, `tell` hears after every image how many were decoded.

    Decoding takes minutes and lies deep below whoever shows that it goes on: nobody between them has to know.
    """
    numbers = count(1)
    token = _after_each.set(lambda: tell(next(numbers)))
    try:
        yield
    finally:
        _after_each.reset(token)


def _decode_in_order(
    sources: Sequence[bytes | Path | None], size: int | None, channels: int
) -> Iterator[Pixels | Unreadable]:
    if all(isinstance(source, bytes) and len(source) < _SMALL for source in sources):
        yield from (_decode(source, size, channels) for source in sources)
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for i in range(0, len(sources), _IN_FLIGHT):
            yield from pool.map(lambda source: _decode(source, size, channels), sources[i : i + _IN_FLIGHT])


def _decode(source: bytes | Path | None, size: int | None, channels: int) -> Pixels | Unreadable:
    if source is None:
        return Unreadable.DAMAGED
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as image:
            if image.mode in ("I", "F"):
                return Unreadable.NO_WHITE
            return to_array(image, size, channels)
    except Exception:
        # On damaged bytes Pillow's readers raise nearly anything: OSError, SyntaxError, ValueError, struct.error.
        return Unreadable.DAMAGED
