"""The numbers that the paper prints."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

AVERAGE = "average"


@cache
def published() -> dict[str, Any]:
    """The paper's tables by study: percentages, each with its spread where one is given, and costs in gigabytes."""
    return tomllib.loads(files("factorized_fl.reproduce").joinpath("paper.toml").read_text(encoding="utf-8"))


def published_mean(what: str, setting: str, method: str) -> list[float] | None:
    """The mean of a cell, with its spread where one is given; of the domains the average."""
    if what == "architectures":
        return [published()[what][setting][method]]
    table: dict[str, list[float]] = published().get(what, {}).get(method, {})
    return table.get(AVERAGE if what == "domains" else setting)
