"""Parquet files in the Hugging Face hub's schema for image classification."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorized_fl.core.errors import UserError
from factorized_fl.data.cache import cached
from factorized_fl.data.images import ImageSet, Pixels, Unreadable, check_shape, decode_each, place_image

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Encoded rows held at a time: so few that the decoded images take most of the memory.
_ROWS_PER_BATCH = 1024
# Without class names a label beyond this is more likely a row number than a class.
_MOST_UNNAMED = 65_536
NO_LABEL = -(2**63)  # stands for a missing label


class _Source(NamedTuple):
    """An open file, and the columns of its images and labels."""

    file: Path
    table: "pq.ParquetFile"
    image: str
    label: str


def cached_parquet(files: Sequence[Path], name: str, size: int | None, channels: int) -> ImageSet:
    """Return the image set of `read_parquet`, from the cache if these files have been decoded in this way before."""
    params = {"reader": "parquet", "name": name, "size": size, "channels": channels}
    return cached(files, params, lambda: read_parquet(files, name=name, size=size, channels=channels))


def read_parquet(files: Sequence[Path], *, name: str, size: int | None, channels: int) -> ImageSet:
    """Return all rows of the files, in order, as one image set; with `size` None the images keep their own size.

    Images are the only column of structs {bytes, path}, labels the column `label`, else `fine_label`, else the only
    column of integers. Class names come from the schema's metadata; without any they are "0".."n-1".
    """
    check_shape(size, channels)
    if not files:
        raise UserError(f"No parquet files for '{name}': give at least one file.")
    sources = [_open(file) for file in files]
    classes = _class_names(sources[0])
    for source in sources:
        if _class_names(source) != classes:
            raise UserError(f"{files[0]} and {source.file} name different classes: read them as separate sets.")
    total = sum(source.table.metadata.num_rows for source in sources)
    if total == 0:
        raise UserError(f"The parquet files for '{name}' hold no rows: check {files[0]}.")

    images: Pixels | None = None
    labels = np.empty(total, np.int64)
    at = 0
    for source in sources:
        first = at
        for encoded, batch_labels in _batches(source):
            _check_labels(source.file, at - first, batch_labels, len(classes) or _MOST_UNNAMED)
            labels[at : at + len(batch_labels)] = batch_labels
            for pixels in decode_each(encoded, size, channels):
                place = f"Row {at - first} of {source.file}"
                if isinstance(pixels, Unreadable):
                    raise UserError(f"{place} {pixels}.")
                images = place_image(images, at, pixels, total, place)
                at += 1
    assert images is not None
    names = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
    return ImageSet(name, torch.from_numpy(images), torch.from_numpy(labels), names)


def read_rows(file: Path) -> tuple[tuple[str, ...], Iterator[tuple[bytes | None, int]]]:
    """Return the class names of a file, () if it names none, and an iterator over its encoded images and labels."""
    source = _open(file)
    batches = (zip(encoded, labels.tolist(), strict=True) for encoded, labels in _batches(source))
    return _class_names(source), chain.from_iterable(batches)


def _open(file: Path) -> _Source:
    import pyarrow as pa  # imported here, as below, because it loads slowly
    import pyarrow.parquet as pq

    if not file.is_file():
        raise UserError(f"There is no file {file}: check the path, or fetch the data again.")
    with _whole(file):
        table = pq.ParquetFile(file)
    schema = table.schema_arrow
    images = [each.name for each in schema if pa.types.is_struct(each.type) and each.type.get_field_index("bytes") >= 0]
    numbers = [each.name for each in schema if pa.types.is_integer(each.type)]
    usual = [name for name in ("label", "fine_label") if name in numbers][:1]
    for what, kind, found, advice in (
        ("image", "structs with a field 'bytes'", images, "of structs with a field 'bytes', as the hub has it"),
        ("label", "integers", usual or numbers, "of whole numbers, or call it 'label'"),
    ):
        if len(found) != 1:
            raise UserError(
                f"{file} has {len(found)} columns that could be the {what} ({kind}) among {', '.join(schema.names)}: "
                f"keep one column {advice}."
            )
    return _Source(file, table, images[0], (usual or numbers)[0])


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """Raise UserError in place of the errors with which a damaged file is read."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        message = f"{file} is not a complete parquet file: it may be cut short; fetch or copy it again."
        raise UserError(message) from error


def _class_names(source: _Source) -> tuple[str, ...]:
    """Return the ClassLabel names that the hub stores as JSON in the schema, or () if there are none."""
    try:
        features = json.loads((source.table.schema_arrow.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[source.label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _batches(source: _Source) -> Iterator[tuple[list[bytes | None], NDArray[np.int64]]]:
    import pyarrow as pa

    with _whole(source.file):
        for batch in source.table.iter_batches(_ROWS_PER_BATCH, columns=[f"{source.image}.bytes", source.label]):
            labels = batch.column(source.label).cast(pa.int64()).fill_null(NO_LABEL)
            yield batch.column(source.image).field("bytes").to_pylist(), labels.to_numpy()


def _check_labels(file: Path, first: int, labels: NDArray[np.int64], limit: int) -> None:
    wrong = (labels < 0) | (labels >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        found = "no label" if labels[row] == NO_LABEL else f"the label {labels[row]}"
        raise UserError(
            f"Row {first + row} of {file} has {found}, but labels run from 0 to {limit - 1}: "
            "remove or relabel such rows."
        )
