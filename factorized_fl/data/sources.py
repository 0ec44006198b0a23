"""Datasets by name: their files, the shape of their images and their normalisation."""

import re
import tomllib
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.data.cache import cache_folder, cached
from factorized_fl.data.embedded import digits, shapes, textures
from factorized_fl.data.folder import image_files, subfolders
from factorized_fl.data.images import ImageSet
from factorized_fl.data.local_images import parts_of, read_local_images
from factorized_fl.data.parquet import cached_parquet, read_parquet

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
HUB: dict[str, dict[str, Any]] = _TABLES["hub"]
DOMAINS: dict[str, str] = _TABLES["domains"]  # of CIFAR-100: the names of their classes
_DRAWN = {"embedded": (digits, shapes, textures), "digits": (digits,), "shapes": (shapes,), "textures": (textures,)}
MIXTURE: dict[str, str] = _TABLES["mixture"]  # its domains and the names of their classes
DATASETS = (*HUB, "cifar100-domains", "mixture", *_DRAWN, "folder")


def load(
    dataset: str, data: Path | None = None, *, size: int | None = None, channels: int | None = None
) -> list[ImageSet]:
    """Return a dataset as one image set per domain.

    `data` is the folder that holds `<dataset>/*.parquet`, by default the folder of `ffl data fetch`. For the dataset
    `folder` it is local images in a layout of local_images.py, or a folder with one such sub-folder per domain; the
    drawn datasets take no folder. Without `size` and `channels` images keep their own size and are in colour, except
    those of drawn datasets (16 pixels) and MNIST (28 pixels, grey).
    """
    if dataset not in DATASETS:
        raise unknown("dataset", dataset, DATASETS)
    if dataset in _DRAWN:
        if data is not None:
            raise UserError(
                f"The images of '{dataset}' are drawn and not those in '{data}': to train on that folder set "
                "dataset=folder or the name of its dataset; otherwise leave out --data."
            )
        return [draw(_or(size, 16), _or(channels, 3)) for draw in _DRAWN[dataset]]
    if dataset == "folder":
        return _folders(data, size, _or(channels, 3))
    if dataset == "cifar100-domains":
        return _cifar100_domains(data, size, _or(channels, 3))
    if dataset == "mixture":
        return [_some_classes(load(each, data, size=_or(size, 32), channels=_or(channels, 3))[0]) for each in MIXTURE]
    if dataset == "mnist":
        size, channels = _or(size, 28), _or(channels, 1)
    return [cached_parquet(_parquet_files(data, dataset), dataset, size, _or(channels, 3))]


def normalisation(dataset: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each channel's mean and deviation, of pixels in 0 .. 1: measured values, or 0.5 and 0.25 if unknown."""
    known = HUB.get("cifar100" if dataset in ("cifar100-domains", *DOMAINS) else dataset)
    if known is None or len(known["mean"]) != channels:
        return (0.5,) * channels, (0.25,) * channels
    return tuple(known["mean"]), tuple(known["std"])


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _parquet_files(data: Path | None, *folders: str) -> list[Path]:
    """Return the parquet files of the first of the folders that holds any: training files, then test files."""
    root = cache_folder() / "hub" if data is None else data
    for folder in folders:
        parts = {part: sorted((root / folder).glob(f"{part}*.parquet")) for part in ("train", "test")}
        if any(parts.values()):
            for part, files in parts.items():
                _check_complete(root / folder, part, files)
            return [*parts["train"], *parts["test"]]
    wanted = root / folders[0] / "train*.parquet"
    raise UserError(
        f"There is no {wanted}: run `ffl data fetch {folders[-1]}`, or give the folder that holds "
        f"'{folders[0]}' with --data DIR."
    )


def _check_complete(folder: Path, part: str, files: list[Path]) -> None:
    """Raise UserError if files are missing by the hub's numbering (train-00000-of-00002); warn if there are none."""
    if not files:
        warnings.warn(f"'{folder}' holds no {part} files: the dataset is read without them.", stacklevel=4)
    numbered = [match for file in files if (match := re.search(r"-(\d+)-of-(\d+)\.parquet$", file.name))]
    if numbered and len({match[1] for match in numbered}) < (total := max(int(match[2]) for match in numbered)):
        raise UserError(f"'{folder}' holds {len(numbered)} of {total} {part} files: also fetch or copy the others.")


def _cifar100_domains(data: Path | None, size: int | None, channels: int) -> list[ImageSet]:
    name = "cifar100-domains"
    files = _parquet_files(data, name, "cifar100")
    params = {"reader": name, "size": size, "channels": channels, "domains": DOMAINS}
    read = partial(read_parquet, files, name=name, size=size, channels=channels)
    return _cut_by_domain(cached(files, params, lambda: _sort_by_domain(read(), files[0])))


def _sort_by_domain(full: ImageSet, file: Path) -> ImageSet:
    """Return only the classes of the domains, sorted by domain, so that each domain is a slice of one mapped file."""
    wanted = [name for names in DOMAINS.values() for name in names.split()]
    if missing := set(wanted) - set(full.classes):
        raise UserError(
            f"The classes that {file} names do not include '{min(missing)}': give the files of CIFAR-100 with "
            "the hub's class names."
        )
    ids = [i for names in DOMAINS.values() for i in sorted(map(full.classes.index, names.split()))]
    relabel = torch.full((len(full.classes),), len(ids))
    relabel[ids] = torch.arange(len(ids))
    labels = relabel[full.labels]
    domain = torch.tensor([d for d, names in enumerate(DOMAINS.values()) for _ in names.split()] + [-1])[labels]
    order = torch.argsort(domain, stable=True)[int((domain < 0).sum()) :]
    return replace(full, images=full.images[order], labels=labels[order], classes=tuple(full.classes[i] for i in ids))


def _cut_by_domain(whole: ImageSet) -> list[ImageSet]:
    cut, first_class, first = [], 0, 0
    for name, names in DOMAINS.items():
        beyond = first_class + len(names.split())
        last = first + int(((whole.labels >= first_class) & (whole.labels < beyond)).sum())
        if last == first:
            raise UserError(f"The files of CIFAR-100 hold no image of the domain '{name}': fetch them again.")
        labels = whole.labels[first:last] - first_class
        cut.append(ImageSet(name, whole.images[first:last], labels, whole.classes[first_class:beyond]))
        first_class, first = beyond, last
    return cut


def _some_classes(whole: ImageSet) -> ImageSet:
    """Return the images of the classes that the mixture keeps of a dataset, in the order of their names there."""
    names = MIXTURE[whole.name].split()
    if missing := [name for name in names if name not in whole.classes]:
        raise UserError(f"The classes of '{whole.name}' do not include '{missing[0]}': give the hub's files.")
    kept = torch.tensor([names.index(name) if name in names else -1 for name in whole.classes])[whole.labels]
    split = None if whole.split is None else whole.split[kept >= 0]
    return ImageSet(whole.name, whole.images[kept >= 0], kept[kept >= 0], tuple(names), split)


def _folders(data: Path | None, size: int | None, channels: int) -> list[ImageSet]:
    if data is None:
        raise UserError("The dataset 'folder' needs a folder of class folders: give it with --data DIR.")
    inner = subfolders(data) if not data.is_file() else []
    paths = [data] if data.is_file() or _is_one_set(data) or not any(map(_is_one_set, inner)) else inner
    return [read_local_images(path, path.resolve().name, size=size, channels=channels) for path in paths]


def _is_one_set(path: Path) -> bool:
    """Return whether a folder is one set of images: parquet files, class folders with images, or a split."""
    first, *others = parts_of(path)
    return bool(others or first.files) or any(map(image_files, subfolders(path)))
