"""The columns of a table in a file: CSV, parquet or npz."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from factorized_fl.core.errors import UserError, unknown


@dataclass(frozen=True)
class Columns:
    """A table's columns by name, what its messages call it, and where its images are."""

    name: str
    columns: Mapping[str, Any]  # Arrow columns, or NumPy arrays with the rows along the first axis
    rows: int
    folder: Path
    files: tuple[Path, ...] = ()  # decides whether images were decoded before, with `mark`
    mark: str = ""
    classes: tuple[str, ...] | None = None

    def get(self, name: str) -> Any:
        """Return a column as an array with the rows along the first axis; raise UserError if there is none."""
        if name not in self.columns:
            raise unknown(f"column of {self.name}", name, self.columns)
        found = self.columns[name]
        return found if isinstance(found, np.ndarray) else found.to_numpy(zero_copy_only=False)


def read_columns(path: Path) -> Columns:
    """Return the columns of a file."""
    import pyarrow as pa  # imported here because it loads slowly, and few runs read tables
    import pyarrow.csv as pcsv
    import pyarrow.parquet as pq

    kind = path.suffix.lower()
    try:
        if kind == ".npz":
            if path.is_file() and not is_zipfile(path):  # NumPy would take the file for a pickle
                raise UserError(f"'{path}' is no npz file: write it with numpy.savez.")
            with np.load(path, allow_pickle=False) as arrays:
                columns = {name: arrays[name] for name in arrays.files}
            lengths = {name: len(array) if array.ndim else 0 for name, array in columns.items()}
            if len({*lengths.values()}) != 1:
                found = ", ".join(f"{name} has {count}" for name, count in lengths.items())
                raise UserError(f"The arrays of '{path}' must have equal numbers of rows, but {found}.")
            return Columns(f"'{path}'", columns, next(iter(lengths.values())), path.parent, (path,))
        if kind == ".csv":
            table = pcsv.read_csv(path)
        elif kind == ".parquet":
            table = pq.read_table(path)
        else:
            raise UserError(f"'{path}' is not a table: give a file that ends in .csv, .parquet or .npz.")
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UserError(f"'{path}' cannot be read as a table: {reason}.") from None
    columns = {name: table.column(name) for name in table.column_names}
    return Columns(f"'{path}'", columns, len(table), path.parent, (path,))


def missing_in(column: Any) -> Any:
    """Return which entries of a column are missing."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([value is None or value == "" for value in column]) if column.dtype == object else np.zeros(1, bool)


def words_of(table: Columns, name: str) -> Any:
    """Return a column as words; raise UserError if a row has none."""
    column = table.get(name)
    if (empty := missing_in(column)).any():
        raise UserError(f"Row {int(empty.argmax()) + 1} of {table.name} has no value in the column '{name}'.")
    return np.array([str(value) for value in column.tolist()])


def read_words(path: Path, name: str) -> Any:
    """Return a column of a file as words; raise UserError if there is none, or a row has no value."""
    return words_of(read_columns(path), name)
