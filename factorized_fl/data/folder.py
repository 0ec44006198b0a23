"""Image folders: one sub-folder for each class."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, check_shape, decode_each

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

# Pictures that hospitals, microscopes and phones make and we do not read; DICOM's files often have no ending at all.
_OTHER_KINDS = frozenset(
    {
        *("", ".dcm", ".dicom", ".ima", ".nii", ".svs", ".ndpi", ".czi", ".pgm", ".ppm"),
        *(".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".dng", ".cr2", ".nef"),
    }
)

# A few broken downloads are a fact of life; more than this share means that something else is wrong.
_MOST_UNREADABLE = 0.1


def read_folder(path: Path, *, size: int | None, channels: int, name: str | None = None) -> ImageSet:
    """Decode a folder of class folders: classes and images in the order of their names.

    Damaged images are left out with one warning, unless they are more than a tenth of all. With `size` None
    the images keep their own size, which must then be the same for all.
    """
    check_shape(size, channels)
    classes = class_folders(path)
    files = [(file, label) for label, folder in enumerate(classes) for file in image_files(folder)]
    for line in passed_over(path):
        warnings.warn(line, stacklevel=3)

    images: Pixels | None = None
    labels: list[int] = []
    unreadable: list[Path] = []
    decoded = decode_each([file for file, _ in files], size, channels)
    for (file, label), pixels in zip(files, decoded, strict=True):
        if pixels is Unreadable.NO_WHITE:
            raise UserError(f"{file} {pixels}.")
        if isinstance(pixels, Unreadable):
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

    if unreadable:
        names = [str(file.relative_to(path)) for file in unreadable]
        if refusal := too_many_unreadable(path, names, len(files)):
            raise UserError(refusal)
        warnings.warn(
            f"Left out {len(names)} unreadable images of {len(files)} in {path}: {some(names)}.", stacklevel=2
        )
    present = set(labels)
    for label, folder in enumerate(classes):
        if label not in present:
            raise UserError(nothing_in(folder))
    assert images is not None
    return ImageSet(
        name or path.resolve().name,
        torch.from_numpy(images[: len(labels)]),
        torch.tensor(labels),
        tuple(folder.name for folder in classes),
    )


def class_folders(path: Path) -> list[Path]:
    """List the folders of two or more classes by name."""
    classes = subfolders(path)
    if len(classes) < 2:
        found = f"only the sub-folder '{classes[0].name}'" if classes else "no sub-folders"
        raise UserError(f"{path} holds {found}: put the images into one sub-folder for each of two or more classes.")
    return classes


def passed_over(path: Path) -> list[str]:
    """Say what of a folder of class folders nobody looks at: pictures too deep or of kinds not read, broken links."""
    lines, classes = [], subfolders(path)
    if deeper := [inner for folder in classes for inner in subfolders(folder) if image_files(inner)]:
        lines.append(
            f"Images in {deeper[0]} are left out, as are those of all folders inside class folders: "
            "put them into the class folders themselves."
        )
    files = [file for folder in classes for file in _entries(folder) if file.is_file()]
    if others := [file.suffix.lower() for file in files if file.suffix.lower() in _OTHER_KINDS]:
        kinds = ", ".join(kind or "without an ending" for kind in sorted(set(others)))
        lines.append(f"{len(others)} files in {path} are left out ({kinds}): save pictures as PNG, JPEG or TIFF.")
    entries = [entry for folder in (path, *classes) for entry in _entries(folder)]
    if broken := sorted(str(entry.relative_to(path)) for entry in entries if entry.is_symlink() and not entry.exists()):
        lines.append(f"Links in {path} lead nowhere and are left out ({some(broken)}): mend or remove them.")
    return lines


def nothing_in(folder: Path) -> str:
    """Say why a class cannot be taken."""
    return f"The class folder {folder} holds no readable image: add images or remove the folder."


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


def too_many_unreadable(path: Path, names: Sequence[str], total: int) -> str:
    """Say why a folder cannot be taken, nothing if so few images are unreadable that they may be left out."""
    if len(names) <= _MOST_UNREADABLE * total:
        return ""
    return f"{len(names)} of {total} images in {path} are unreadable ({some(names)}): repair or remove them."


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
