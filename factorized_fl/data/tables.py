"""Clients from tables: CSV, parquet and npz files, and datasets of the Hugging Face library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorized_fl.core.errors import UserError
from factorized_fl.data.cache import cached
from factorized_fl.data.clients import ClientData
from factorized_fl.data.columns import Columns, missing_in, read_columns, words_of
from factorized_fl.data.groups import check_groups
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, check_shape, decode_each, place_image
from factorized_fl.data.rows import Rows

_SPLITS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}


def from_file(
    path: str | Path,
    *,
    label: str | Sequence[str] = "label",
    image: str | None = None,
    features: str | Sequence[str] = (),
    client: str | None = None,
    split: str | None = None,
    group: str | None = None,
    test: str | Path | None = None,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    channels: int = 3,
) -> list[ClientData]:
    """Read the clients of a CSV, parquet or npz file.

    Args:
        path: the file. Arrays of an npz file are its columns, with the rows along the first axis.
        label: the column of classes, words or whole numbers. A column of fractions, or several columns, are numbers to
            predict.
        image: the column of images: paths that are relative to the file, or the bytes of PNG, JPEG and other files.
        features: the columns of numbers that make a vector; or one column of lists or arrays of equal shape, such as
            series or token ids. Either `image` or `features` is needed.
        client: the column that names the client of each row. Without it there is one client; see `ffl.partition`.
        split: the column with the words train, validation and test.
        group: the column of patients or other groups, which are never divided between training, validation and test.
        test: a file of the same kind to test on. With `client` it has each client's rows, else all clients share it.
        classes: the classes in order; by default the values of the label column, sorted.
        size: images are cropped to a square and scaled to so many pixels; without it they must be equal squares.
        channels: 3 for colour, 1 for grey.

    Returns:
        One client for each name in the column `client`, in the order of their first rows.

    Raises:
        UserError: if the table cannot be used; the message names the file and the row.
    """
    tables = [read_columns(Path(each)) for each in (path, test) if each is not None]
    return _clients(tables, label, image, features, client, split, classes, size, channels, group)


def read_image_table(
    path: Path, image: str, label: str, split: str, *, size: int, channels: int, classes: Sequence[str]
) -> ImageSet:
    """Return the images of a table in the order of its rows; classes that are not among `classes` come after those."""
    table = read_columns(path)
    words = words_of(table, label)
    names = [*classes, *sorted({*words.tolist()} - {*classes})]
    numbers = {name: number for number, name in enumerate(names)}
    pixels = _images(table, image, size, channels)
    parts = torch.from_numpy(splits_of(table, split)).to(torch.uint8) if split else None
    return ImageSet(path.name, pixels[:], torch.tensor([numbers[word] for word in words]), tuple(names), parts)


def from_hf(
    dataset: Any,
    *,
    label: str | Sequence[str] = "label",
    image: str | None = None,
    features: str | Sequence[str] = (),
    client: str | None = None,
    split: str | None = None,
    test: Any = None,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    channels: int = 3,
) -> list[ClientData]:
    """Read the clients of a dataset of the library `datasets`, or of the hub.

    Args:
        dataset: a `datasets.Dataset`; a `datasets.DatasetDict`, of which the parts `train` and `test` are used; or the
            name of a dataset on the Hugging Face hub.
        label: as in `ffl.from_file`; the classes are those that the dataset names.
        image: as in `ffl.from_file`; by default the only column of images.
        features: as in `ffl.from_file`.
        client: as in `ffl.from_file`.
        split: as in `ffl.from_file`.
        test: a `datasets.Dataset` to test on, in place of the part `test`.
        classes: as in `ffl.from_file`.
        size: as in `ffl.from_file`.
        channels: as in `ffl.from_file`.

    Returns:
        One client for each name in the column `client`.

    Raises:
        UserError: if the library `datasets` is missing or the dataset cannot be used.
    """
    try:
        import datasets
    except ImportError:
        raise UserError('from_hf needs the library datasets: pip install "factorized-fl[hf]".') from None
    if isinstance(dataset, str):
        try:
            dataset = datasets.load_dataset(dataset)
        except Exception as error:  # the library raises many kinds
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UserError(f"The dataset '{dataset}' cannot be loaded ({type(error).__name__}: {reason}).") from None
    if isinstance(dataset, Mapping):
        if "train" not in dataset:
            raise UserError(f"The dataset has the parts {', '.join(dataset)}: give one of them, or name one 'train'.")
        dataset, test = dataset["train"], dataset.get("test") if test is None else test
    for given in (dataset, test):
        if given is not None and not isinstance(given, datasets.Dataset):
            raise UserError(f"from_hf takes a datasets.Dataset, a DatasetDict or a name, not {type(given).__name__}.")
    if image is None and not features:
        images = [name for name, kind in dataset.features.items() if isinstance(kind, datasets.Image)]
        image = images[0] if len(images) == 1 else None
    if classes is None and isinstance(label, str):
        classes = getattr(dataset.features.get(label), "names", None)
    tables = [_of_dataset(given, label) for given in (dataset, test) if given is not None]
    return _clients(tables, label, image, features, client, split, classes, size, channels)


def _of_dataset(dataset: Any, label: str | Sequence[str]) -> Columns:
    """Return the columns of a datasets.Dataset, with class numbers replaced by the names of the classes."""
    table = dataset.with_format("arrow")[:]
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    names = getattr(dataset.features.get(label), "names", None) if isinstance(label, str) else None
    if names:
        numbers = columns[str(label)].to_pylist()
        columns[str(label)] = np.array([None if n is None or n < 0 else names[n] for n in numbers], dtype=object)
    return Columns("the dataset", columns, len(table), Path(), mark=str(dataset._fingerprint))


def _clients(
    tables: Sequence[Columns],
    label: str | Sequence[str],
    image: str | None,
    features: str | Sequence[str],
    client: str | None,
    split: str | None,
    classes: Sequence[str] | None,
    size: int | None,
    channels: int,
    group: str | None = None,
) -> list[ClientData]:
    """Return the clients of a table, and of a second one to test on."""
    for table in tables:
        if not table.rows:
            raise UserError(f"{table.name} has no rows: give a table with at least one.")
    if (image is None) == (not features):
        raise UserError("A table needs either image= or features=: name the column of images, or those of numbers.")
    labels, names = _labels(tables, label, classes)
    inputs = [
        _images(table, image, size, channels) if image is not None else _features(table, features) for table in tables
    ]
    groups = [words_of(table, client) if client else np.full(table.rows, "") for table in tables]
    order = list(dict.fromkeys(groups[0].tolist()))
    found = []
    parts = [splits_of(tables[0], split) if split else np.zeros(tables[0].rows, np.int64)]
    together = [words_of(table, group) for table in tables] if group else []
    if group:
        ends = [np.full(table.rows, 2) for table in tables[1:]]  # the second table is for the test
        check_groups(np.concatenate(together).tolist(), np.concatenate([*parts, *ends]).tolist(), tables[0].name, group)
    for name in order:
        held: list[tuple[Any, Tensor] | None] = []
        for part in range(3):
            at = torch.from_numpy(np.flatnonzero((groups[0] == name) & (parts[0] == part)))
            held.append((_take(inputs[0], at), labels[0][at]) if len(at) else None)
        if held[0] is None:
            raise UserError(f"{name or 'The table'} has no training rows in {tables[0].name}: name some 'train'.")
        if len(tables) > 1 and client:
            at = torch.from_numpy(np.flatnonzero(groups[1] == name))
            if not len(at):
                raise UserError(f"{name} has no rows in {tables[1].name}: add some, or leave test= out.")
            held[2] = _take(inputs[1], at), labels[1][at]
        elif len(tables) > 1:
            held[2] = _take(inputs[1], torch.arange(tables[1].rows)), labels[1]
        stay = together[0][(groups[0] == name) & (parts[0] == 0)] if group else None
        found.append(ClientData(*held[0], validation=held[1], test=held[2], name=name, classes=names, groups=stay))
    return found


def _take(inputs: Tensor | Rows, at: Tensor) -> Tensor | Rows:
    """Return some rows; those of images stay where they are."""
    return Rows(inputs.pool, inputs.at[at]) if isinstance(inputs, Rows) else inputs[at]


def _labels(
    tables: Sequence[Columns], label: str | Sequence[str], classes: Sequence[str] | None
) -> tuple[list[Tensor], list[str] | None]:
    """Return the labels of each table, and the names of their classes or numbers."""
    if not isinstance(label, str):
        return [_numbers(table, label).float() for table in tables], list(label)
    columns = [table.get(label) for table in tables]
    for table, column in zip(tables, columns, strict=True):
        if column.ndim == 1 and (empty := missing_in(column)).any():
            raise UserError(f"Row {int(empty.argmax()) + 1} of {table.name} has no value in the column '{label}'.")
    if columns[0].ndim > 1 or (columns[0].dtype.kind == "f" and classes is None):
        return [torch.from_numpy(column.astype(np.float32)) for column in columns], None
    words = [[str(value) for value in column.tolist()] for column in columns]
    present = {value for column in columns for value in column.tolist()}
    names = [str(name) for name in classes] if classes else [str(value) for value in sorted(present, key=_order)]
    numbers = {name: index for index, name in enumerate(names)}
    for table, column in zip(tables, words, strict=True):
        for row, word in enumerate(column):
            if word not in numbers:
                raise UserError(f"Row {row + 1} of {table.name} has the class '{word}', which classes= leaves out.")
    return [torch.tensor([numbers[word] for word in column]) for column in words], names


def _order(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts numbers by value and before words."""
    return isinstance(value, str), value


def splits_of(table: Columns, name: str) -> Any:
    """Return 0 for training, 1 for validation and 2 for test rows."""
    words = words_of(table, name)
    for row, word in enumerate(words):
        if word.lower() not in _SPLITS:
            raise UserError(f"Row {row + 1} of {table.name} has '{word}' in '{name}': use train, validation or test.")
    return np.array([_SPLITS[word.lower()] for word in words])


def _features(table: Columns, names: str | Sequence[str]) -> Tensor:
    """Return the inputs from columns of numbers, or from one column of lists or arrays."""
    if not isinstance(names, str) and len(names) == 1:
        names = names[0]
    if not isinstance(names, str):
        return _numbers(table, names)
    column = table.get(names)
    if column.ndim == 1 and not (column.dtype == object and isinstance(column[0], np.ndarray)):
        return _numbers(table, (names,))
    try:
        rows = column if column.dtype != object else np.stack([np.array(value.tolist()) for value in column])
        found = torch.from_numpy(np.ascontiguousarray(rows))
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"The column '{names}' of {table.name} cannot be read as numbers of one shape: give lists of equal length."
        ) from None
    return found.float() if found.is_floating_point() else found


def _numbers(table: Columns, names: Sequence[str]) -> Tensor:
    """Return columns of numbers side by side, float32 [N, columns]."""
    found = []
    for name in names:
        column = table.get(name)
        if column.ndim != 1 or column.dtype.kind not in "fiub":
            raise UserError(f"The column '{name}' of {table.name} holds no numbers: leave it out, or make it numbers.")
        if not (finite := np.isfinite(column.astype(np.float64))).all():
            row = int((~finite).argmax()) + 1
            raise UserError(f"Row {row} of {table.name} has no number in the column '{name}': fill it in, or drop it.")
        found.append(torch.from_numpy(column.astype(np.float32)))
    return torch.stack(found, 1)


def _images(table: Columns, name: str, size: int | None, channels: int) -> Rows:
    """Return the decoded images of a column, from the cache if the same files were decoded in this way before."""
    check_shape(size, channels)
    sources = [_source(table, name, row, value) for row, value in enumerate(table.get(name).tolist())]
    files = [source for source in sources if isinstance(source, Path)]
    for row, source in enumerate(sources):
        if isinstance(source, Path) and not source.is_file():
            raise UserError(f"Row {row + 1} of {table.name} names the image '{source}', which does not exist.")

    def decode() -> ImageSet:
        images: Pixels | None = None
        for row, pixels in enumerate(decode_each(sources, size, channels)):
            place = f"Row {row + 1} of {table.name}"
            if isinstance(pixels, Unreadable):
                raise UserError(f"{place} {pixels}.")
            images = place_image(images, row, pixels, len(sources), place)
        assert images is not None
        return ImageSet(name, torch.from_numpy(images), torch.zeros(len(images), dtype=torch.int64), ("image",))

    params = {"reader": "table", "column": name, "size": size, "channels": channels, "mark": table.mark}
    pool = cached([*files, *([] if files else table.files)], params, decode).images
    return Rows(pool, torch.arange(len(pool)))


def _source(table: Columns, name: str, row: int, value: Any) -> bytes | Path:
    """Return the bytes or the path of an image: a path, bytes, or a struct of both as the hub has it."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value:
        return table.folder / value
    raise UserError(f"Row {row + 1} of {table.name} has no image in the column '{name}': give a path, or bytes.")
