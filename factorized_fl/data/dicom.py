"""DICOM files as 8-bit pictures, by pydicom (the extra `dicom`): one frame, by a chosen window or that of the file."""

import importlib
import importlib.util
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from factorized_fl.data.windows import Window

_ENDINGS = ("", ".dcm", ".dicom", ".ima")
_MAGIC = slice(128, 132)  # of a DICOM file


class NotReadable(Exception):
    """A DICOM file cannot be used; the text is the name of the reason in `Unreadable`."""


def is_dicom(source: bytes | Path) -> bool:
    """Return whether a file or its bytes are DICOM."""
    if isinstance(source, bytes):
        return source[_MAGIC] == b"DICM"
    if source.suffix.lower() not in _ENDINGS:
        return False
    with source.open("rb") as file:
        return file.read(_MAGIC.stop)[_MAGIC] == b"DICM"


def read_dicom(source: bytes | Path, window: Window | None) -> Image.Image:
    """Return the picture in a DICOM file as grey or RGB; raise NotReadable with the reason."""
    if importlib.util.find_spec("pydicom") is None:
        raise NotReadable("NO_PYDICOM")
    import pydicom

    pixels: Any = importlib.import_module("pydicom.pixels")

    try:
        dataset = pydicom.dcmread(BytesIO(source) if isinstance(source, bytes) else source)
    except Exception:  # pydicom raises many kinds on damaged files
        raise NotReadable("DAMAGED") from None
    if "PixelData" not in dataset:
        raise NotReadable("DAMAGED")
    if int(dataset.get("NumberOfFrames", 1) or 1) > 1:
        raise NotReadable("FRAMES")
    try:
        values = pixels.pixel_array(dataset)
    except Exception:
        packed = dataset.file_meta.TransferSyntaxUID.is_compressed
        raise NotReadable("PACKED" if packed else "DAMAGED") from None
    if values.ndim == 3:
        return Image.fromarray(values.astype(np.uint8))
    chosen = window or _own_window(dataset)
    values = pixels.apply_modality_lut(values, dataset)
    if chosen is None:
        if int(dataset.BitsStored) > 8:
            raise NotReadable("NO_WINDOW")
        chosen = Window(127.5, 255.0)
    grey = chosen.grey(values)
    return Image.fromarray(255 - grey if dataset.PhotometricInterpretation == "MONOCHROME1" else grey)


def _own_window(dataset: Any) -> Window | None:
    """Return the first window of a file, or None."""
    try:
        level, width = (
            float(found if isinstance(found, int | float | str) or not hasattr(found, "__getitem__") else found[0])
            for found in (dataset.WindowCenter, dataset.WindowWidth)
        )
    except (AttributeError, TypeError, ValueError, IndexError):
        return None
    return Window(level, width) if width > 0 else None
