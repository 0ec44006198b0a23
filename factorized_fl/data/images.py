"""Labelled images in memory, and the decoding of encoded images to arrays."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from factorized_fl.core.errors import UserError
from factorized_fl.data.dicom import NotReadable, is_dicom, read_dicom
from factorized_fl.data.windows import Window, current_window

Pixels = NDArray[np.uint8]

# With only these readers a WebP opens eight times as fast as when Pillow tries all of its readers.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# Bytes below which passing the interpreter lock between threads costs more time than the threads save:
# a 32x32 image takes 0.13 ms on one thread and 0.2 ms on two.
_SMALL = 16_384
# The most decoded images that wait to be consumed.
_IN_FLIGHT = 256
_WHITE_IS_ZERO = 0  # in a TIFF
# A context variable, so that it need not be passed through every function that loads data.
_after_each: ContextVar[Callable[[], None]] = ContextVar("after_each", default=lambda: None)


class Unreadable(StrEnum):
    """The reason why an image cannot be decoded, and the remedy: the rest of a sentence that begins with its name."""

    DAMAGED = "holds no readable image: repair or replace it"
    UNKNOWN_WHITE = "has 32-bit or signed pixels, whose white level is unknown: save it with 8 or 16 bits, unsigned"
    NO_PYDICOM = 'is a DICOM file: pip install "factorized-fl[dicom]"'
    FRAMES = "is a DICOM file with several frames: save the frame to use as a file of its own"
    NO_WINDOW = "is a DICOM file without a window: choose one for all files with --window LEVEL/WIDTH"
    PACKED = "is a compressed DICOM file that pydicom cannot decode here: save it uncompressed, or install its decoder"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A labelled set of decoded images of one size; scenarios are built from such sets."""

    name: str
    images: torch.Tensor  # uint8 [N, C, H, W] with C = 1 or 3 and H = W
    labels: torch.Tensor  # int64 [N], each in 0..len(classes)-1
    classes: tuple[str, ...]
    split: torch.Tensor | None = None  # uint8 [N], 0 train, 1 validation, 2 test, if the source fixes a split

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

    def _wrong(self, what: str) -> UserError:
        return UserError(f"The image set '{self.name}' is malformed: {what}.")


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def check_shape(size: int | None, channels: int) -> None:
    """Raise UserError for an image size or a number of channels that no image set can have."""
    if channels not in (1, 3):
        raise UserError(f"Images have 1 channel (grey) or 3 (colour), not {channels}: choose 1 or 3.")
    if size is not None and size < 1:
        raise UserError(f"The image size must be a positive number of pixels, not {size}.")


def to_array(image: Image.Image, size: int | None, channels: int, window: Window | None = None) -> Pixels:
    """Return an image as uint8 [C, H, W]: upright, on white, and with a `size` its centre square, scaled to that.

    A window decides which values of 16-bit grey are black and white; it leaves 8-bit images as they are.
    """
    if image.mode.startswith("I;16"):
        image = _to_eight_bits(image, window)
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


def place_image(images: Pixels | None, index: int, pixels: Pixels, total: int, name: str) -> Pixels:
    """Return the array of all `total` images with `pixels` at `index`; raise UserError unless all are equal squares."""
    if images is None:
        images = np.empty((total, *pixels.shape), np.uint8)
    if pixels.shape != images.shape[1:] or pixels.shape[1] != pixels.shape[2]:
        raise UserError(
            f"{name} is {pixels.shape[2]}x{pixels.shape[1]} pixels where equal squares are needed: "
            "give a size, and all images are cropped and scaled to it."
        )
    images[index] = pixels
    return images


def _to_eight_bits(image: Image.Image, window: Window | None) -> Image.Image:
    """Return 16-bit grey as 8 bits by the file's metadata, which Pillow's conversion ignores; it also clips at 255."""
    deep, tags = np.asarray(image), getattr(image, "tag_v2", {})  # the tags of a TIFF
    white = 2 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    grey = window.grey(deep) if window else (deep.astype(np.uint32) * 255 // white).astype(np.uint8)
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
    """Yield the decoded image of each source (bytes or a file) in order, or the reason why it cannot be decoded."""
    report, decode = _after_each.get(), partial(_decode, size=size, channels=channels, window=current_window())
    small = all(isinstance(source, bytes) and len(source) < _SMALL for source in sources)
    with nullcontext() if small else ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for i in range(0, len(sources), _IN_FLIGHT):
            for decoded in (pool.map if pool else map)(decode, sources[i : i + _IN_FLIGHT]):
                report()
                yield decoded


@contextmanager
def counting(report: Callable[[int], None]) -> Iterator[None]:
    """Within the context, call `report` after every decoded image with the number of images decoded so far."""
    numbers = count(1)
    token = _after_each.set(lambda: report(next(numbers)))
    try:
        yield
    finally:
        _after_each.reset(token)


def _decode(source: bytes | Path | None, size: int | None, channels: int, window: Window | None) -> Pixels | Unreadable:
    if source is None:
        return Unreadable.DAMAGED
    try:
        if is_dicom(source):
            return to_array(read_dicom(source, window), size, channels)
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as image:
            if image.mode in ("I", "F"):
                return Unreadable.UNKNOWN_WHITE
            return to_array(image, size, channels, window)
    except NotReadable as error:
        return Unreadable[str(error)]
    except Exception:
        # Pillow's readers raise many exceptions on damaged bytes: OSError, SyntaxError, ValueError, struct.error.
        return Unreadable.DAMAGED
