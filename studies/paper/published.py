"""The numbers that the paper prints, from published.toml."""

from typing import Any

from studies.paper.cells import read_data

AVERAGE = "average"  # the column of the mean over all domains


def published() -> dict[str, Any]:
    """Return the paper's tables by study: percentages, with their spread where one is given, and costs in gigabytes."""
    return read_data("published.toml")


def published_mean(study: str, setting: str, method: str) -> list[float] | None:
    """Return the mean of a cell, with its spread where one is given; for the domains their average."""
    if study == "architectures":
        return [published()[study][setting][method]]
    table: dict[str, list[float]] = published().get(study, {}).get(method, {})
    return table.get(AVERAGE if study == "domains" else setting)
