"""A party's own images: one folder per class, or parquet; split by seed, or already split; and a first look at them.

Four layouts are understood: class folders; `train`, `test` and perhaps `validation` (or `val`) folders that hold class
folders; one parquet file; parquet files whose names begin with train, test and perhaps validation (or val).
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import torch

from factorized_fl.data.cache import cached
from factorized_fl.data.folder import MOST_UNREADABLE, image_files, read_folder, subfolders
from factorized_fl.data.images import ImageSet, Pixels, decode_each
from factorized_fl.data.parquet import NO_LABEL, read_parquet, read_rows
from factorized_fl.errors import UserError

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
    labels, split = [], []
    for part, found in zip(parts, sets, strict=True):
        if foreign := set(found.classes) - set(classes):
            raise UserError(
                f"The {part.split} images in {path} have a class '{min(foreign)}' that no training image has: "
                "add training images of it, or take it away."
            )
        own = torch.tensor([classes.index(known) for known in found.classes])
        labels.append(own[found.labels])
        split.append(torch.full((len(found),), SPLITS.index(part.split), dtype=torch.uint8))
    return ImageSet(name, torch.cat([s.images for s in sets]), torch.cat(labels), classes, torch.cat(split))


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
    unreadable: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # class folders without a readable image
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
        lines += [f"The class folder '{name}' holds no readable image: no run takes it." for name in self.empty]
        if self.counts.get("train"):
            strange = [name for name in self.classes if not self.counts["train"][name]]
            lines += [f"The class '{name}' has no training images: no run takes it." for name in strange]
        if self.unreadable:
            refused = len(self.unreadable) > MOST_UNREADABLE * (self.total + len(self.unreadable))
            ending = ", so many that no run takes them" if refused else ""
            lines.append(f"{len(self.unreadable)} files cannot be read{ending}: {_some(self.unreadable)}.")
        if self.brightest < _DARK:
            lines.append(f"The pictures are nearly black: {_dark(self.brightest)}")
        for found, what in (
            (self.across, "pictures are in two splits, so a test would meet what was trained on"),
            (self.contradicted, "pictures stand under two classes"),
            (self.repeated, "pictures are there twice; a split by seed may part them"),
        ):
            if found:
                lines.append(f"{len(found)} {what}: {_some([' = '.join(pair) for pair in found])}.")
        return lines


def inspect(path: Path, tell: Callable[[int], None] = lambda count: None) -> Inspection:
    """Look at every image of a party's data: nothing is written and nothing leaves the machine.

    Now and then `tell` is told how many images were looked at.
    """
    found, parts = Inspection(), parts_of(path)
    seen: dict[bytes, tuple[str, str, str]] = {}  # picture -> split, class, where
    entries, looked_at = _entries(parts), 0
    while some := list(islice(entries, _AT_ONCE)):
        decoded = decode_each([source for *_, source in some], None, 3)
        for (split, label, where, _), pixels in zip(some, decoded, strict=True):
            _look(found, seen, (split, label, where), pixels)
        looked_at += len(some)
        tell(looked_at)
    if not found.total:
        raise UserError(_nothing(path))
    for part in parts:
        counts = found.counts.get(part.split, Counter())
        inner = subfolders(part.folder) if part.folder else []
        found.empty += [folder.name for folder in inner if not counts[folder.name]]
    return found


def _look(
    found: Inspection, seen: dict[bytes, tuple[str, str, str]], place: tuple[str, str, str], pixels: Pixels | None
) -> None:
    """At one picture, of a split and a class, that lies somewhere."""
    split, label, where = place
    found.counts.setdefault(split, Counter())
    if pixels is None:
        found.unreadable.append(where)
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


def _nothing(path: Path) -> str:
    """Why there is nothing to look at."""
    if path.is_dir() and any(image_files(inner) for folder in subfolders(path) for inner in subfolders(folder)):
        return f"{path} holds folders of class folders, as the domains of a simulation do: inspect each by itself."
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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
