"""Options that the paper leaves open, chosen on validation images and never on the test."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from factorized_fl.errors import UserError
from factorized_fl.reproduce.cells import Cell

CHOICES = "choices.json"


def chosen_options(results: Path) -> Callable[[Cell], Mapping[str, Any]]:
    """For each cell the options that choices.json under the results gives its method; none without that file.

    An entry may name a preset that it is for; one that names none is for all of them and yields to one that does.
    """
    path = results / CHOICES
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["chosen"]
    except FileNotFoundError:
        entries = []
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError) as error:
        raise UserError(f"The choices '{path}' cannot be read ({error}): remove the file to choose again.") from None

    def options(cell: Cell) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for entry in sorted(entries, key=lambda entry: entry["preset"] is not None):
            if cell.method in entry["methods"] and entry["preset"] in (None, cell.preset):
                found |= entry["options"]
        return found

    return options
