"""The files of the methods stay small, and each method has a complete card."""

import inspect
from pathlib import Path

import pytest

from factorized_fl.methods import INSTALLED, METHODS

SHARED = {"factorized.py"}  # the base of several methods
FILES = sorted({inspect.getfile(METHODS[name]) for name in INSTALLED})


@pytest.mark.parametrize("file", [f for f in FILES if Path(f).name not in SHARED], ids=lambda f: Path(f).stem)
def test_a_file_has_at_most_120_lines(file: str) -> None:
    assert len(Path(file).read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("method", METHODS)
def test_a_card_names_paper_payload_and_aggregation(method: str) -> None:
    card = METHODS[method].card
    assert card.title
    assert card.paper
    assert all(card.row)
    assert max(len(text) for text in card.row) <= 40
