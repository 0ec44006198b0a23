"""Local images of a user or a site: the recognition of their layout, their reading and their inspection.

There are two formats: a folder with one sub-folder per class, and parquet files. Either may be split already: into
`train`, `test` and optionally `validation` (or `val`) folders of either format, or into parquet files whose names begin
with train, test and optionally val. Images without a split are split at random later, by seed.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.cache import cached
from factorized_fl.data.folder import (
    class_folders,
    empty_class,
    first_few,
    ignored_files,
    image_files,
    read_folder,
    subfolders,
    too_many_unreadable,
)
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, decode_each
from factorized_fl.data.parquet import NO_LABEL, cached_parquet, read_rows

SPLITS = ("train", "validation", "test")
_SPLIT_OF = {"val": "validation", "valid": "validation", **{split: split for split in SPLITS}}
_WHOLE = ""  # the split of images that are not split yet
_AT_ONCE = 16  # images that are decoded at the same time in their full size
_FEW = 10  # images of a class, below which its accuracy is meaningless
_DARK = 32  # of 255; 12-bit images in 16-bit files have values up to 15


@dataclass(frozen=True)
class Part:
    """The images of one split: a folder of class folders, or parquet files."""

    split: str  # train, validation, test, or empty if the images are not split yet
    folder: Path
    files: tuple[Path, ...]  # parquet files; if there are none, the images lie in class folders


def parts_of(path: Path) -> list[Part]:
    """Return the parts of local images by their layout.

    Raises UserError if there is nothing at `path` or if only some of the images are split.
    """
    if path.is_file() and path.suffix == ".parquet":
        return [Part(_WHOLE, path.parent, (path,))]
    if not path.is_dir():
        raise UserError(f"There is no folder or parquet file {path}: check the path.")
    if files := _parquet_files(path):
        beginnings = {"train": "train", "validation": "val", "test": "test"}
        named = {split: tuple(f for f in files if f.name.startswith(word)) for split, word in beginnings.items()}
        if named["train"] and named["test"]:
            if strange := sorted(set(files).difference(*named.values())):
                raise UserError(
                    f"{path} is split, but {strange[0].name} is in no part: let its name begin with train, val or "
                    "test, or put it elsewhere."
                )
            return [Part(split, path, found) for split, found in named.items() if found]
        return [Part(_WHOLE, path, files)]
    return _split_folders(path) or [Part(_WHOLE, path, ())]


def _parquet_files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(path.glob("*.parquet")))


def _split_folders(path: Path) -> list[Part]:
    """Return the parts of a folder that is split, none if it is not; raise UserError if the split is incomplete."""
    folders = subfolders(path)
    named = [folder for folder in folders if folder.name in _SPLIT_OF]
    if not any(_parquet_files(folder) or (subfolders(folder) and not image_files(folder)) for folder in named):
        return []
    by_split = {_SPLIT_OF.get(folder.name, ""): folder for folder in folders}
    if len(by_split) < len(folders) or not {"train", "test"} <= by_split.keys() <= set(SPLITS):
        raise UserError(
            f"{path} has the folders {', '.join(folder.name for folder in folders)}: images that are split lie in "
            "train and test, perhaps in validation, and nowhere else."
        )
    found = [(split, by_split[split]) for split in SPLITS if split in by_split]
    return [Part(split, folder, _parquet_files(folder)) for split, folder in found]


def read_local_images(path: Path, name: str, *, size: int | None, channels: int) -> ImageSet:
    """Return local images as one image set, with the split of their layout if it has one.

    With a `size` the images are cropped and scaled to it. Raises UserError if they cannot be read or if validation or
    test images have classes without training images; warns if they lack classes or are nearly black.
    """
    sets = {part.split: _read(part, name, size, channels) for part in parts_of(path)}
    if (brightest := max(int(each.images.max()) for each in sets.values())) < _DARK:
        warnings.warn(f"The images in {path} are nearly black: {_dark(brightest)}", stacklevel=2)
    if _WHOLE in sets:
        return sets[_WHOLE]
    classes = sets["train"].classes
    present = {split: {each.classes[label] for label in each.labels.unique().tolist()} for split, each in sets.items()}
    untrained, untested = _gaps(path, present)
    if untrained:
        raise UserError(untrained[0])
    for line in untested:
        warnings.warn(line, stacklevel=2)
    labels, split = [], []
    for name_of_split, images in sets.items():
        # Parquet files may name classes of which they have no image.
        own = torch.tensor([classes.index(known) if known in classes else -1 for known in images.classes])
        labels.append(own[images.labels])
        split.append(torch.full((len(images),), SPLITS.index(name_of_split), dtype=torch.uint8))
    return ImageSet(name, torch.cat([s.images for s in sets.values()]), torch.cat(labels), classes, torch.cat(split))


def _gaps(path: Path, present: Mapping[str, Set[str]]) -> tuple[list[str], list[str]]:
    """Return an error for each split with classes that are not trained on, and a warning for each that lacks some."""
    untrained, untested = [], []
    for split, classes in present.items():
        if strange := classes - present["train"]:
            untrained.append(
                f"The {split} images in {path} have classes that no training image has ({_quoted(strange)}): add "
                "training images of them, or remove them."
            )
        if missing := present["train"] - classes:
            untested.append(
                f"The {split} images in {path} lack classes that are trained on ({_quoted(missing)}), so their "
                "accuracy does not cover those: add images of them."
            )
    return untrained, untested


def _quoted(classes: Set[str]) -> str:
    return first_few([f"'{name}'" for name in sorted(classes)])


def _dark(brightest: int) -> str:
    return f"no value is above {brightest} of 255. Scale 16-bit images that use fewer bits to 8 bits first."


def _read(part: Part, name: str, size: int | None, channels: int) -> ImageSet:
    if part.files:
        return cached_parquet(part.files, name, size, channels)
    folder = part.folder
    files = [file for inner in subfolders(folder) for file in image_files(inner)]
    # The key holds the names besides the contents, because the names of the class folders become the classes.
    names = [name, [inner.name for inner in subfolders(folder)], [str(f.relative_to(folder)) for f in files]]
    key = {"reader": "folder", "names": names, "size": size, "channels": channels}
    return cached(files, key, lambda: read_folder(folder, size=size, channels=channels, name=name))


@dataclass
class Inspection:
    """The findings of an inspection of local images."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)  # split -> class -> images
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (width, height)
    grey: int = 0
    brightest: int = 0  # the largest value of any image, of 255
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # split, location
    no_white: list[str] = field(default_factory=list)  # images whose white level is unknown; runs refuse them
    notes: list[str] = field(default_factory=list)  # the warnings and errors of a run on these images
    repeated: list[tuple[str, str]] = field(default_factory=list)  # the same image twice in one split and class
    across: list[tuple[str, str]] = field(default_factory=list)  # the same image in two splits
    contradicted: list[tuple[str, str]] = field(default_factory=list)  # the same image in two classes

    @property
    def classes(self) -> list[str]:
        """All class names, sorted."""
        return sorted(set().union(*self.counts.values()))

    @property
    def total(self) -> int:
        """The number of readable images."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def complaints(self) -> list[str]:
        """Return a sentence for each problem that should be examined before training on these images."""
        lines = ["There are fewer than two classes: nothing can be learned."] if len(self.classes) < 2 else []
        lines += [
            f"The class '{name}' has only {count} images."
            for name in self.classes
            if (count := sum(counts[name] for counts in self.counts.values())) < _FEW
        ]
        lines += self.notes
        if self.unreadable:
            places = first_few([where for _, where in self.unreadable])
            lines.append(f"{len(self.unreadable)} images cannot be read: {places}.")
        if self.no_white:
            lines.append(_no_white(self.no_white))
        if self.brightest < _DARK:
            lines.append(f"The images are nearly black: {_dark(self.brightest)}")
        for pairs, problem in (
            (self.across, "images are in two splits, so that the model would be tested on training images"),
            (self.contradicted, "images are in two classes"),
            (self.repeated, "images occur twice; a random split may put the copies into different parts"),
        ):
            if pairs:
                lines.append(f"{len(pairs)} {problem}: {first_few([' = '.join(pair) for pair in pairs])}.")
        return lines


def inspect_images(path: Path) -> Inspection:
    """Decode all local images and return the findings; nothing is written or sent.

    Raises UserError if there is no readable image.
    """
    found, parts = Inspection(), parts_of(path)
    seen: dict[bytes, tuple[str, str, str]] = {}  # digest of the image -> split, class, location
    entries = _entries(parts)
    while batch := list(islice(entries, _AT_ONCE)):
        decoded = decode_each([source for *_, source in batch], None, 3)
        for (split, label, where, _), pixels in zip(batch, decoded, strict=True):
            _record(found, seen, (split, label, where), pixels)
    if not found.total:
        raise UserError(_no_white(found.no_white) if found.no_white else _nothing(path, parts))
    found.notes = [line for part in parts for line in _run_notes(part, found)]
    if len(parts) > 1:
        present = {part.split: found.counts.get(part.split, Counter()).keys() for part in parts}
        found.notes += chain(*_gaps(path, present))
    return found


def _run_notes(part: Part, found: Inspection) -> Iterator[str]:
    """Yield the warnings and errors with which a run reads a part."""
    counts = found.counts.get(part.split, Counter())
    unreadable = [where for split, where in found.unreadable if split == part.split]
    if part.files:
        yield from (f"{where} {Unreadable.DAMAGED}." for where in unreadable[:1])
        return
    yield from ignored_files(part.folder)
    if refusal := too_many_unreadable(part.folder, unreadable, counts.total() + len(unreadable)):
        yield refusal
    try:
        yield from (empty_class(folder) for folder in class_folders(part.folder) if not counts[folder.name])
    except UserError as error:
        yield str(error)


def _record(
    found: Inspection, seen: dict[bytes, tuple[str, str, str]], place: tuple[str, str, str], pixels: Pixels | Unreadable
) -> None:
    """Add one image with its place (split, class and location) to the findings."""
    split, label, where = place
    found.counts.setdefault(split, Counter())
    if isinstance(pixels, Unreadable):
        if pixels is Unreadable.UNKNOWN_WHITE:
            found.no_white.append(where)
        else:
            found.unreadable.append((split, where))
        return
    found.counts[split][label] += 1
    found.sizes[pixels.shape[2], pixels.shape[1]] += 1
    found.brightest = max(found.brightest, int(pixels.max()))
    found.grey += bool((pixels[0] == pixels[1]).all() and (pixels[1] == pixels[2]).all())
    digest = blake2b(pixels.tobytes() + str(pixels.shape).encode(), digest_size=16).digest()
    first_split, first_label, first = seen.setdefault(digest, place)
    if first == where:
        return
    if first_label != label:
        found.contradicted.append((first, where))
    if first_split != split:
        found.across.append((first, where))
    elif first_label == label:
        found.repeated.append((first, where))


def _no_white(places: Sequence[str]) -> str:
    more = f", and {len(places) - 1} more like it" if len(places) > 1 else ""
    return f"{places[0]} {Unreadable.UNKNOWN_WHITE}{more}."


def _nothing(path: Path, parts: Iterable[Part]) -> str:
    """Return the error message for a path without readable images."""
    folders = subfolders(path) if path.is_dir() else []
    if any(_parquet_files(folder) or any(map(image_files, subfolders(folder))) for folder in folders):
        return f"{path} holds one folder of images per domain, as for a simulation: inspect each of them separately."
    for part in parts:
        if not part.files and (lines := ignored_files(part.folder)):
            return lines[0]
    return f"{path} holds no readable images: put them into one sub-folder for each class, or give parquet files."


def _entries(parts: Iterable[Part]) -> Iterator[tuple[str, str, str, bytes | Path | None]]:
    """Yield split, class, location and source of every image."""
    for part in parts:
        if not part.files:
            for folder in subfolders(part.folder):
                for file in image_files(folder):
                    yield part.split, folder.name, str(file.relative_to(part.folder.parent)), file
        for file in part.files:
            classes, rows = read_rows(file)
            for row, (encoded, label) in enumerate(rows):
                known = "no label" if label == NO_LABEL else str(label)
                name = classes[label] if 0 <= label < len(classes) else known
                yield part.split, name, f"{file.name} row {row}", encoded
