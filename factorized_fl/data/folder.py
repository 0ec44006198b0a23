"""Image folders: one sub-folder for each class."""

import warnings
from pathlib import Path

import numpy as np
import torch

from factorized_fl.data.images import ImageSet, Pixels, check_shape, decode_each
from factorized_fl.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

# A few broken downloads are a fact of life; more than this share means that something else is wrong.
MOST_UNREADABLE = 0.1


def read_folder(path: Path, *, size: int | None, channels: int, name: str | None = None) -> ImageSet:
    """Decode a folder of class folders: classes and images in the order of their names.

    Unreadable images are left out with one warning, unless they are more than a tenth of all. With `size` None
    the images keep their own size, which must then be the same for all.
    """
    check_shape(size, channels)
    classes = subfolders(path)
    if len(classes) < 2:
        found = f"only the sub-folder '{classes[0].name}'" if classes else "no sub-folders"
        raise UserError(f"{path} holds {found}: put the images into one sub-folder for each of two or more classes.")
    files = [(file, label) for label, folder in enumerate(classes) for file in image_files(folder)]
    if deeper := [inner for folder in classes for inner in subfolders(folder) if image_files(inner)]:
        warnings.warn(
            f"Images in {deeper[0]} are left out, as are those of all folders inside class folders: "
            "put them into the class folders themselves.",
            stacklevel=3,
        )

    images: Pixels | None = None
    labels: list[int] = []
    unreadable: list[Path] = []
    decoded = decode_each([file for file, _ in files], size, channels)
    for (file, label), pixels in zip(files, decoded, strict=True):
        if pixels is None:
            unreadable.append(file)
            continue
        if images is None:
            images = np.empty((len(files), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:] or pixels.shape[1] != pixels.shape[2]:
            raise UserError(
                f"{file} is {pixels.shape[2]}x{pixels.shape[1]} pixels where equal squares are needed: "
                "give a size, and all images are cropped and scaled to it."
            )
        images[len(labels)] = pixels
        labels.append(label)

    _report(path, unreadable, len(files))
    present = set(labels)
    for label, folder in enumerate(classes):
        if label not in present:
            raise UserError(f"The class folder {folder} holds no readable image: add images or remove the folder.")
    assert images is not None
    return ImageSet(
        name or path.resolve().name,
        torch.from_numpy(images[: len(labels)]),
        torch.tensor(labels),
        tuple(folder.name for folder in classes),
    )


def subfolders(path: Path) -> list[Path]:
    """List the visible sub-folders of a folder by name."""
    if not path.is_dir():
        raise UserError(f"There is no folder {path}: check the path.")
    found = sorted(entry for entry in _entries(path) if entry.is_dir())
    for entry in found:
        if not is_text(entry.name):
            raise UserError(f"The name of the folder {str(entry)!a} is no text: rename it, it would be a class's name.")
    return found


def is_text(name: str) -> bool:
    """Whether a file's name is made of characters; disks hold any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def image_files(path: Path) -> list[Path]:
    """List the visible image files that lie directly in a folder by name."""
    return sorted(entry for entry in _entries(path) if entry.suffix.lower() in SUFFIXES and entry.is_file())


def _entries(path: Path) -> list[Path]:
    """What is visible in a folder."""
    try:
        return [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): allow it, or leave the folder out.") from None


def _report(path: Path, unreadable: list[Path], total: int) -> None:
    if not unreadable:
        return
    named = ", ".join(str(file.relative_to(path)) for file in unreadable[:3])
    named += f" and {len(unreadable) - 3} more" if len(unreadable) > 3 else ""
    if len(unreadable) > MOST_UNREADABLE * total:
        raise UserError(
            f"{len(unreadable)} of {total} images in {path} are unreadable ({named}): repair or remove them."
        )
    warnings.warn(f"Left out {len(unreadable)} unreadable images of {total} in {path}: {named}.", stacklevel=3)
