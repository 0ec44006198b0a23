"""Parquet files in the Hugging Face hub's schema for image classification."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, check_shape, decode_each, place_image

# Encoded rows held at a time: so few that the decoded images take most of the memory.
_ROWS_PER_BATCH = 1024
# Without class names a label beyond this is more likely a row number than a class.
_MOST_UNNAMED = 65_536
NO_LABEL = -(2**63)  # stands for a missing label
_ADVICE = {
    "image": "keep one column of structs with a field 'bytes', as the hub has it",
    "label": "keep one column of whole numbers, or call it 'label'",
}


def read_parquet(
    files: Sequence[Path],
    *,
    name: str,
    size: int | None,
    channels: int,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageSet:
    """Return all rows of the files, in order, as one image set.

    Columns that are not given are found: images by their struct {bytes, path}; labels as `label`, else `fine_label`,
    else the only integer column. Class names come from the schema's metadata; without any they are "0".."n-1". With
    `size` None the images keep their own size. Raises UserError if a file, a column, an image or a label is unusable,
    or if sizes differ while `size` is None.
    """
    check_shape(size, channels)
    if not files:
        raise UserError(f"No parquet files for '{name}': give at least one file.")
    tables = [_open(file) for file in files]
    columns = [
        (
            _image_column(file, table.schema_arrow, image_column),
            _label_column(file, table.schema_arrow, label_column),
        )
        for file, table in zip(files, tables, strict=True)
    ]
    classes = _classes(files, [(t.schema_arrow, label) for t, (_, label) in zip(tables, columns, strict=True)])
    total = sum(table.metadata.num_rows for table in tables)
    if total == 0:
        raise UserError(f"The parquet files for '{name}' hold no rows: check {files[0]}.")

    images: Pixels | None = None
    labels = np.empty(total, np.int64)
    at = 0
    for file, table, (image, label) in zip(files, tables, columns, strict=True):
        first = at
        for encoded, batch_labels in _batches(file, table, image, label):
            _check_labels(file, at - first, batch_labels, len(classes) or _MOST_UNNAMED)
            labels[at : at + len(batch_labels)] = batch_labels
            for pixels in decode_each(encoded, size, channels):
                if isinstance(pixels, Unreadable):
                    raise UserError(f"Row {at - first} of {file} {pixels}.")
                images = place_image(images, at, pixels, total, f"Row {at - first} of {file}")
                at += 1
    assert images is not None
    names = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
    return ImageSet(name, torch.from_numpy(images), torch.from_numpy(labels), names)


def read_rows(file: Path) -> tuple[tuple[str, ...], Iterator[tuple[bytes | None, int]]]:
    """Return the class names of a file, () if it names none, and an iterator over its encoded images and labels."""
    table = _open(file)
    image, label = _image_column(file, table.schema_arrow, None), _label_column(file, table.schema_arrow, None)
    rows = (
        row
        for encoded, labels in _batches(file, table, image, label)
        for row in zip(encoded, labels.tolist(), strict=True)
    )
    return _class_names(table.schema_arrow, label), rows


def _open(file: Path) -> pq.ParquetFile:
    if not file.is_file():
        raise UserError(f"There is no file {file}: check the path, or fetch the data again.")
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file) from error


def _unreadable(file: Path) -> UserError:
    return UserError(f"{file} is not a complete parquet file: it may be cut short; fetch or copy it again.")


def _image_column(file: Path, schema: pa.Schema, given: str | None) -> str:
    candidates = [
        field.name for field in schema if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    ]
    return _choose(file, schema, "image", "structs with a field 'bytes'", candidates, given)


def _label_column(file: Path, schema: pa.Schema, given: str | None) -> str:
    candidates = [field.name for field in schema if pa.types.is_integer(field.type)]
    usual = next((column for column in ("label", "fine_label") if column in candidates), None)
    return _choose(file, schema, "label", "integers", candidates, given or usual)


def _choose(file: Path, schema: pa.Schema, what: str, kind: str, candidates: Sequence[str], given: str | None) -> str:
    if given is not None and given in candidates:
        return given
    if given is None and len(candidates) == 1:
        return candidates[0]
    if given is None:
        raise UserError(
            f"{file} has {len(candidates)} columns that could be the {what} ({kind}) among "
            f"{', '.join(schema.names)}: {_ADVICE[what]}."
        )
    raise UserError(f"{file} has no {what} column '{given}' ({kind}): its columns are {', '.join(schema.names)}.")


def _classes(files: Sequence[Path], labels: Sequence[tuple[pa.Schema, str]]) -> tuple[str, ...]:
    found = [_class_names(schema, column) for schema, column in labels]
    for file, names in zip(files, found, strict=True):
        if names != found[0]:
            raise UserError(f"{files[0]} and {file} name different classes: read them as separate sets.")
    return found[0]


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Return the ClassLabel names that the hub stores as JSON in the schema, or () if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _batches(
    file: Path, table: pq.ParquetFile, image: str, label: str
) -> Iterator[tuple[list[bytes | None], NDArray[np.int64]]]:
    try:
        for batch in table.iter_batches(_ROWS_PER_BATCH, columns=[f"{image}.bytes", label]):
            labels = batch.column(label).cast(pa.int64()).fill_null(NO_LABEL)
            encoded = batch.column(image).field("bytes").to_pylist()
            yield encoded, labels.to_numpy()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file) from error


def _check_labels(file: Path, first: int, labels: NDArray[np.int64], limit: int) -> None:
    wrong = (labels < 0) | (labels >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        found = "no label" if labels[row] == NO_LABEL else f"the label {labels[row]}"
        raise UserError(
            f"Row {first + row} of {file} has {found}, but labels run from 0 to {limit - 1}: "
            "remove or relabel such rows."
        )
