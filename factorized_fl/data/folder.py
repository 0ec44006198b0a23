"""Image folders with one sub-folder per class."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, check_shape, decode_each, place_image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

# Formats of hospitals, microscopes and phones that are not read; DICOM files often have no file extension.
_OTHER_KINDS = {
    *("", ".dcm", ".dicom", ".ima", ".nii", ".svs", ".ndpi", ".czi", ".pgm", ".ppm"),
    *(".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".dng", ".cr2", ".nef"),
}

# A few damaged files are common in downloads; a larger share than this points to another problem.
_MOST_UNREADABLE = 0.1


def read_folder(path: Path, *, size: int | None, channels: int, name: str | None = None) -> ImageSet:
    """Return the images of a folder of class folders in the order of names; a few damaged ones are left out."""
    check_shape(size, channels)
    classes = class_folders(path)
    files = [(file, label) for label, folder in enumerate(classes) for file in image_files(folder)]
    for line in ignored_files(path):
        warnings.warn(line, stacklevel=3)

    images: Pixels | None = None
    labels: list[int] = []
    unreadable: list[Path] = []
    decoded = decode_each([file for file, _ in files], size, channels)
    for (file, label), pixels in zip(files, decoded, strict=True):
        if pixels is Unreadable.UNKNOWN_WHITE:
            raise UserError(f"{file} {pixels}.")
        if isinstance(pixels, Unreadable):
            unreadable.append(file)
            continue
        images = place_image(images, len(labels), pixels, len(files), str(file))
        labels.append(label)

    if unreadable:
        names = [str(file.relative_to(path)) for file in unreadable]
        if refusal := too_many_unreadable(path, names, len(files)):
            raise UserError(refusal)
        warnings.warn(
            f"Left out {len(names)} unreadable images of {len(files)} in {path}: {first_few(names)}.", stacklevel=2
        )
    if empty := set(range(len(classes))) - set(labels):
        raise UserError(empty_class(classes[min(empty)]))
    assert images is not None
    return ImageSet(
        name or path.resolve().name,
        torch.from_numpy(images[: len(labels)]),
        torch.tensor(labels),
        tuple(folder.name for folder in classes),
    )


def folder_notes(path: Path, unreadable: Sequence[str], counts: Counter[str]) -> Iterator[str]:
    """Yield the warnings and errors of `read_folder`, from the unreadable images and the numbers of the others."""
    yield from ignored_files(path)
    if refusal := too_many_unreadable(path, unreadable, counts.total() + len(unreadable)):
        yield refusal
    try:
        yield from (empty_class(folder) for folder in class_folders(path) if not counts[folder.name])
    except UserError as error:
        yield str(error)


def class_folders(path: Path) -> list[Path]:
    """Return the class folders in the order of their names; raise UserError if there are fewer than two."""
    classes = subfolders(path)
    if len(classes) < 2:
        content = f"only the sub-folder '{classes[0].name}'" if classes else "no sub-folders"
        raise UserError(f"{path} holds {content}: put the images into one sub-folder for each of two or more classes.")
    return classes


def ignored_files(path: Path) -> list[str]:
    """Return a sentence for each kind of ignored files: images in deeper folders, unknown formats, broken links."""
    lines, classes = [], subfolders(path)
    if deeper := [inner for folder in classes for inner in subfolders(folder) if image_files(inner)]:
        lines.append(
            f"Images in {deeper[0]} are left out, as are those of all folders inside class folders: "
            "put them into the class folders themselves."
        )
    files = [file for folder in classes for file in _entries(folder) if file.is_file()]
    if others := [file.suffix.lower() for file in files if file.suffix.lower() in _OTHER_KINDS]:
        kinds = ", ".join(kind or "no file extension" for kind in sorted(set(others)))
        lines.append(f"{len(others)} files in {path} are left out ({kinds}): save images as PNG, JPEG or TIFF.")
    entries = [entry for folder in (path, *classes) for entry in _entries(folder)]
    if broken := sorted(str(entry.relative_to(path)) for entry in entries if entry.is_symlink() and not entry.exists()):
        lines.append(f"Broken links in {path} are left out ({first_few(broken)}): repair or remove them.")
    return lines


def empty_class(folder: Path) -> str:
    """Return the error message for a class folder without readable images."""
    return f"The class folder {folder} holds no readable image: add images or remove the folder."


def subfolders(path: Path) -> list[Path]:
    """Return the visible sub-folders in the order of their names; raise UserError if a name cannot be decoded."""
    if not path.is_dir():
        raise UserError(f"There is no folder {path}: check the path.")
    folders = sorted(entry for entry in _entries(path) if entry.is_dir())
    for folder in folders:
        if any("\ud800" <= letter <= "\udfff" for letter in folder.name):  # bytes that file systems accept as a name
            raise UserError(
                f"The name of the folder {str(folder)!a} is not valid text: rename it, as it names a class."
            )
    return folders


def image_files(path: Path) -> list[Path]:
    """Return the visible image files directly in a folder, in the order of their names."""
    return sorted(entry for entry in _entries(path) if entry.suffix.lower() in SUFFIXES and entry.is_file())


def _entries(path: Path) -> list[Path]:
    """Return the visible entries of a folder."""
    try:
        return [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): grant read permission, or remove the folder."
        ) from None


def too_many_unreadable(path: Path, names: Sequence[str], total: int) -> str:
    """Return the error message for too many unreadable images, or "" if they are few enough to be left out."""
    if len(names) <= _MOST_UNREADABLE * total:
        return ""
    return f"{len(names)} of {total} images in {path} are unreadable ({first_few(names)}): repair or remove them."


def first_few(names: Sequence[str]) -> str:
    """Return the first three names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
