"""The files of the methods stay small, and each method has a complete card."""

from pathlib import Path

import pytest

import factorized_fl.methods
from factorized_fl.methods import METHODS

FOLDER = Path(factorized_fl.methods.__file__ or "").parent
OLDER = {"factorized.py", "fingerprints.py"}  # shared by several methods


@pytest.mark.parametrize("path", sorted(set(FOLDER.glob("*.py")) - {FOLDER / name for name in OLDER}), ids=str)
def test_a_file_has_at_most_120_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("method", METHODS)
def test_a_card_names_paper_payload_and_aggregation(method: str) -> None:
    card = METHODS[method].card
    assert card.title
    assert card.paper
    assert all(card.row)
    assert max(len(text) for text in card.row) <= 40
