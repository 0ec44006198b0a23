"""The numbers that the paper prints."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def published() -> dict[str, Any]:
    """The paper's tables by study: percentages, each with its spread where one is given, and costs in gigabytes."""
    return tomllib.loads(files("factorized_fl.reproduce").joinpath("paper.toml").read_text(encoding="utf-8"))
