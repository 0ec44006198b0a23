"""Results that nobody ran, with answers that can be checked by hand: clients at chosen accuracies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.paper.cells import Cell
from studies.paper.grid import STUDIES
from studies.paper.page import pages
from studies.paper.table import Table
from studies.runner import as_record, write_record

PLACES = ("household", "fruit-food", "tree-flower", "transport", "animals")


def page(table: Table) -> str:
    """All pages as one text."""
    return "\n".join(pages(table).values())


def cell_of(what: str, setting: str, row: str) -> Cell:
    (cell,) = (cell for cell in STUDIES[what].own if (cell.setting, cell.row) == (setting, row))
    return cell


def write(
    results: Path, what: str, row: str, percents: Sequence[float], setting: str = "", seed: int = 1, **more: Any
) -> None:
    """A cell whose clients end at these accuracies after four rounds at 10%, `correct` counted for 1,000 images.

    Tests have so many `images` that their own error is small.
    """
    images = more.pop("images", 50_000)
    cell = replace(cell_of(what, setting or what, row), seed=seed)
    clients = len(percents)
    correct = more.pop("correct", [*[[100] * clients] * 4, [round(10 * percent) for percent in percents]])
    counted = [[None if right is None else right * images // 1000 for right in row] for row in correct]
    domains = (
        [PLACES[k * 5 // clients] for k in range(clients)] if cell.preset.startswith("cifar100") else ["all"] * clients
    )
    record = {
        "what": cell.study,
        "setting": cell.setting,
        "method": cell.method,
        "variant": cell.variant,
        "seed": seed,
        "preset": cell.preset,
        "commit": "abc",
        "environment": {"device": "a test"},
        "seconds": {"rounds": 50.0, "start": 10.0},
        "configuration": as_record(cell.config()),
        "clients": {"domain": domains, "train": [100] * clients, "scored": [images] * clients},
        "bytes": {
            "up": 2_000_000_000,
            "down": 1_000_000_000,
            "formula_a": 20_388_000_000,
            "formula_b": 20_594_000_000,
            "up_per_round": [400_000_000] * len(correct),
            "down_per_round": [0, *[250_000_000] * (len(correct) - 1)],
        },
        "correct": counted,
        **more,
    }
    write_record(cell.path(results), record)


def factors(clients: int, grouped: bool) -> dict[str, Any]:
    """u at random, v grouped by domain or not; five domains."""

    def matrix(by_domain: bool) -> list[list[float]]:
        size = clients // 5
        near = (lambda a, b: a // size == b // size) if by_domain else (lambda a, b: a % size == b % size)
        return [[1.0 if a == b else 0.9 if near(a, b) else 0.5 for b in range(clients)] for a in range(clients)]

    def summary(by_domain: bool) -> dict[str, Any]:
        shown = matrix(by_domain)
        return {
            "same": [0.9] * 5,
            "other": [0.5] * 5,
            "found": [1.0, *[float(by_domain)] * 4],
            "matrices": {"1": shown, "5": shown},
        }

    return {
        "u": summary(False) | {"other": [0.99] * 5},
        "v": summary(grouped),
        "numbers": {"u": 344, "v": 270_538, "mu": 2_568_384},
        "mu_kept": [*[2_500_000] * 4, 2_012_118],
    }


def mixing(clients: int) -> dict[str, Any]:
    return {
        "own": [0.5],
        "own_domain": [0.25],
        "weight": [[1 / clients] * clients] * clients,
        "matched": [[1] * clients] * clients,
    }
