"""Files of results: JSON that is small, complete or absent, and easy to compare line by line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.results.rundir import Record


def read_record(path: Path, *needed: str) -> Record:
    """Return what a result file holds; raise UserError if it cannot be read or lacks one of the needed entries."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if missing := sorted(set(needed) - set(record)):
            raise ValueError(f"it has no '{missing[0]}'")
        return record
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"The result '{path}' cannot be read ({error}): remove it to run this cell again.") from None


def write_record(path: Path, record: Record) -> None:
    """Write a result file, with its folder."""
    with plain_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (layout(record) + "\n").encode())


def as_record(config: Config) -> Record:
    """Return a configuration as JSON has it."""
    return json.loads(json.dumps(asdict(config)))


def came_from(record: Record, config: Config) -> bool:
    """Return whether a result was run with a configuration; an option newer than the result has its default."""
    try:
        return from_table(record["configuration"]) == config
    except UserError:  # an option that was removed
        return False


def layout(value: Any, indent: int = 0) -> str:
    """Return JSON in which a table of numbers has one line per row."""
    flat = json.dumps(value)
    rows = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    if not (isinstance(value, dict) or rows) or len(flat) + indent < 100:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {layout(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + inner[1:] + "}"
    return "[\n" + ",\n".join(inner + layout(item, indent + 1) for item in value) + "\n" + inner[1:] + "]"
