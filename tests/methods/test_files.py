"""The files of the methods stay small, and each method has a complete card."""

import inspect
from pathlib import Path

import pytest

from factorized_fl.methods import INSTALLED, METHODS

FILES = sorted({inspect.getfile(METHODS[name]) for name in INSTALLED})
SHARED = {"factorized.py"}  # the base of several methods


@pytest.mark.parametrize("path", [Path(file) for file in FILES if Path(file).name not in SHARED], ids=lambda p: p.stem)
def test_a_file_has_at_most_120_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("method", METHODS)
def test_a_card_names_paper_payload_and_aggregation(method: str) -> None:
    card = METHODS[method].card
    assert card.title
    assert card.paper
    assert all(card.row)
    assert max(len(text) for text in card.row) <= 40
