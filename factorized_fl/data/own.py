"""A party's own images: one folder per class, or parquet; split by seed, or already split; and a first look at them.

Four layouts are understood: class folders; `train`, `test` and perhaps `validation` (or `val`) folders that hold class
folders; one parquet file; parquet files whose names begin with train, test and perhaps validation (or val).
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.cache import cached
from factorized_fl.data.folder import (
    class_folders,
    image_files,
    nothing_in,
    passed_over,
    read_folder,
    some,
    subfolders,
    too_many_unreadable,
)
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, decode_each
from factorized_fl.data.parquet import NO_LABEL, read_parquet, read_rows

SPLITS = ("train", "validation", "test")
_SPLIT_OF = {"val": "validation", "valid": "validation", **{split: split for split in SPLITS}}
_WHOLE = ""  # the name of the only part of a set that is not split yet
_AT_ONCE = 16  # images that are decoded side by side at their full size
_FEW = 10  # images of a class below which its accuracy says next to nothing
_DARK = 32  # of 255; 12-bit pictures in 16-bit files have at most 15


@dataclass(frozen=True)
class Part:
    """One part of a party's data: a folder of class folders, or parquet files."""

    split: str  # train, validation, test, or empty where nothing is split yet
    folder: Path | None = None
    files: tuple[Path, ...] = ()


def parts_of(path: Path) -> list[Part]:
    """Recognise the layout of a party's data."""
    if path.is_file() and path.suffix == ".parquet":
        return [Part(_WHOLE, files=(path,))]
    if not path.is_dir():
        raise UserError(f"There is no folder or parquet file {path}: check the path.")
    if files := sorted(path.glob("*.parquet")):
        beginnings = {"train": "train", "validation": "val", "test": "test"}
        named = {split: tuple(f for f in files if f.name.startswith(word)) for split, word in beginnings.items()}
        if named["train"] and named["test"]:
            if strange := sorted(set(files).difference(*named.values())):
                raise UserError(
                    f"{path} is split, but {strange[0].name} is in no part: let its name begin with train, val or "
                    "test, or put it elsewhere."
                )
            return [Part(split, files=found) for split, found in named.items() if found]
        return [Part(_WHOLE, files=tuple(files))]
    return _split_folders(path) or [Part(_WHOLE, folder=path)]


def _split_folders(path: Path) -> list[Part]:
    """The parts of a folder that is split, nothing of one that is not; what is only half a split is refused."""
    folders = subfolders(path)
    if not any(folder.name in _SPLIT_OF and subfolders(folder) and not image_files(folder) for folder in folders):
        return []
    found = {_SPLIT_OF.get(folder.name, ""): folder for folder in folders}
    if len(found) < len(folders) or not {"train", "test"} <= found.keys() <= set(SPLITS):
        raise UserError(
            f"{path} has the folders {', '.join(folder.name for folder in folders)}: images that are split lie in "
            "train and test, perhaps in validation, and nowhere else."
        )
    return [Part(split, folder=found[split]) for split in SPLITS if split in found]


def read_own(path: Path, name: str, *, size: int | None, channels: int) -> ImageSet:
    """All of a party's images, cropped and scaled to a size, if one is given, and the split that their layout gives."""
    parts = parts_of(path)
    sets = [_read(part, name, size, channels) for part in parts]
    if (brightest := max(int(found.images.max()) for found in sets)) < _DARK:
        warnings.warn(f"The images in {path} are nearly black: {_dark(brightest)}", stacklevel=2)
    if len(sets) == 1:
        return sets[0]
    classes = sets[0].classes  # those to train on
    shown = {part.split: _shown(found) for part, found in zip(parts, sets, strict=True)}
    if untrained := _untrained(path, shown):
        raise UserError(untrained[0])
    for line in _untested(path, shown):
        warnings.warn(line, stacklevel=2)
    labels, split = [], []
    for part, found in zip(parts, sets, strict=True):
        # Parquet files may name classes of which they have no image.
        own = torch.tensor([classes.index(known) if known in classes else -1 for known in found.classes])
        labels.append(own[found.labels])
        split.append(torch.full((len(found),), SPLITS.index(part.split), dtype=torch.uint8))
    return ImageSet(name, torch.cat([s.images for s in sets]), torch.cat(labels), classes, torch.cat(split))


def _shown(found: ImageSet) -> set[str]:
    return {found.classes[label] for label in found.labels.unique().tolist()}


def _untrained(path: Path, shown: Mapping[str, Set[str]]) -> list[str]:
    """What is wrong with the classes that the images of each split show: no run takes that."""
    return [
        f"The {split} images in {path} have classes that no training image has ({_quoted(strange)}): add training "
        "images of them, or take them away."
        for split, classes in shown.items()
        if (strange := classes - shown["train"])
    ]


def _untested(path: Path, shown: Mapping[str, Set[str]]) -> list[str]:
    """What a run tells of them."""
    return [
        f"The {split} images in {path} lack classes that are trained on ({_quoted(missing)}), so their accuracy says "
        "nothing of those: add images of them."
        for split, classes in shown.items()
        if (missing := shown["train"] - classes)
    ]


def _quoted(classes: Set[str]) -> str:
    return some([f"'{name}'" for name in sorted(classes)])


def _dark(brightest: int) -> str:
    return f"no value is above {brightest} of 255. Scale 16-bit pictures that use fewer bits to 8 bits first."


def _read(part: Part, name: str, size: int | None, channels: int) -> ImageSet:
    if part.folder is None:
        files = list(part.files)
        params = {"reader": "parquet", "name": name, "size": size, "channels": channels}
        return cached(files, params, lambda: read_parquet(files, name=name, size=size, channels=channels))
    folder = part.folder
    files = [file for inner in subfolders(folder) for file in image_files(inner)]
    # Names stand in the key beside the contents because the class folders' names become the classes.
    names = [name, [inner.name for inner in subfolders(folder)], [str(f.relative_to(folder)) for f in files]]
    key = {"reader": "folder", "names": names, "size": size, "channels": channels}
    return cached(files, key, lambda: read_folder(folder, size=size, channels=channels, name=name))


@dataclass
class Inspection:
    """What a first look at a party's data finds."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)  # split -> class -> images
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (width, height)
    grey: int = 0
    brightest: int = 0  # value of all pictures, of 255
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # split, where
    no_white: list[str] = field(default_factory=list)  # pictures of a kind that no run takes
    told: list[str] = field(default_factory=list)  # what a run would say
    repeated: list[tuple[str, str]] = field(default_factory=list)  # the same picture twice in one split and class
    across: list[tuple[str, str]] = field(default_factory=list)  # the same picture in two splits
    contradicted: list[tuple[str, str]] = field(default_factory=list)  # the same picture under two classes

    @property
    def classes(self) -> list[str]:
        """All class names, sorted."""
        return sorted(set().union(*self.counts.values()))

    @property
    def total(self) -> int:
        """Readable images."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def complaints(self) -> list[str]:
        """What somebody should look at before training on this, in plain words."""
        lines = []
        if len(self.classes) < 2:
            lines.append("There are fewer than two classes: nothing can be learned.")
        lines += [
            f"The class '{name}' has only {count} images."
            for name in self.classes
            if (count := sum(counts[name] for counts in self.counts.values())) < _FEW
        ]
        lines += self.told
        if self.unreadable:
            lines.append(f"{len(self.unreadable)} pictures cannot be read: {some([at for _, at in self.unreadable])}.")
        if self.no_white:
            lines.append(_no_white(self.no_white))
        if self.brightest < _DARK:
            lines.append(f"The pictures are nearly black: {_dark(self.brightest)}")
        for found, what in (
            (self.across, "pictures are in two splits, so a test would meet what was trained on"),
            (self.contradicted, "pictures stand under two classes"),
            (self.repeated, "pictures are there twice; a split by seed may part them"),
        ):
            if found:
                lines.append(f"{len(found)} {what}: {some([' = '.join(pair) for pair in found])}.")
        return lines


def inspect(path: Path) -> Inspection:
    """Look at every image of a party's data: nothing is written and nothing leaves the machine."""
    found, parts = Inspection(), parts_of(path)
    seen: dict[bytes, tuple[str, str, str]] = {}  # picture -> split, class, where
    entries = _entries(parts)
    while batch := list(islice(entries, _AT_ONCE)):
        decoded = decode_each([source for *_, source in batch], None, 3)
        for (split, label, where, _), pixels in zip(batch, decoded, strict=True):
            _look(found, seen, (split, label, where), pixels)
    if not found.total:
        raise UserError(_no_white(found.no_white) if found.no_white else _nothing(path, parts))
    found.told = [line for part in parts for line in _told(part, found)]
    if len(parts) > 1:
        shown = {part.split: found.counts.get(part.split, Counter()).keys() for part in parts}
        found.told += _untrained(path, shown) + _untested(path, shown)
    return found


def _told(part: Part, found: Inspection) -> Iterator[str]:
    """What a run leaves out of a part, and why none takes it, in a run's words."""
    counts = found.counts.get(part.split, Counter())
    unreadable = [where for split, where in found.unreadable if split == part.split]
    if part.folder is None:
        yield from (f"{where} {Unreadable.DAMAGED}." for where in unreadable[:1])
        return
    yield from passed_over(part.folder)
    if refusal := too_many_unreadable(part.folder, unreadable, counts.total() + len(unreadable)):
        yield refusal
    try:
        yield from (nothing_in(folder) for folder in class_folders(part.folder) if not counts[folder.name])
    except UserError as error:
        yield str(error)


def _look(
    found: Inspection, seen: dict[bytes, tuple[str, str, str]], place: tuple[str, str, str], pixels: Pixels | Unreadable
) -> None:
    """At one picture, of a split and a class, that lies somewhere."""
    split, label, where = place
    found.counts.setdefault(split, Counter())
    if isinstance(pixels, Unreadable):
        if pixels is Unreadable.NO_WHITE:
            found.no_white.append(where)
        else:
            found.unreadable.append((split, where))
        return
    found.counts[split][label] += 1
    found.sizes[pixels.shape[2], pixels.shape[1]] += 1
    found.brightest = max(found.brightest, int(pixels.max()))
    found.grey += bool((pixels[0] == pixels[1]).all() and (pixels[1] == pixels[2]).all())
    picture = blake2b(pixels.tobytes() + str(pixels.shape).encode(), digest_size=16).digest()
    first_split, first_label, first = seen.setdefault(picture, place)
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
    return f"{places[0]} {Unreadable.NO_WHITE}{more}."


def _nothing(path: Path, parts: Iterable[Part]) -> str:
    """Why there is nothing to look at."""
    if path.is_dir() and any(image_files(inner) for folder in subfolders(path) for inner in subfolders(folder)):
        return f"{path} holds folders of class folders, as the domains of a simulation do: inspect each by itself."
    for part in parts:
        if part.folder and (lines := passed_over(part.folder)):
            return lines[0]
    return f"{path} holds no readable images: put them into one sub-folder for each class, or give parquet files."


def _entries(parts: Iterable[Part]) -> Iterator[tuple[str, str, str, bytes | Path | None]]:
    """Split, class, place and source of every image."""
    for part in parts:
        if part.folder is not None:
            for folder in subfolders(part.folder):
                for file in image_files(folder):
                    yield part.split, folder.name, str(file.relative_to(part.folder.parent)), file
        for file in part.files:
            classes, rows = read_rows(file)
            for row, (encoded, label) in enumerate(rows):
                known = "no label" if label == NO_LABEL else str(label)
                name = classes[label] if 0 <= label < len(classes) else known
                yield part.split, name, f"{file.name} row {row}", encoded
