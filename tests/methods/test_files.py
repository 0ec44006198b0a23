"""The files of the methods stay small, and each method has a complete card."""

import inspect
from pathlib import Path

import pytest

from factorized_fl.methods import INSTALLED, METHODS

# Of all methods and of the classes that they inherit from.
CLASSES = {cls for name in INSTALLED for cls in METHODS[name].__mro__ if ".methods." in cls.__module__}
FILES = sorted({inspect.getfile(cls) for cls in CLASSES})


@pytest.mark.parametrize("file", FILES, ids=lambda f: Path(f).stem)
def test_a_file_has_at_most_120_lines(file: str) -> None:
    assert len(Path(file).read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("method", METHODS)
def test_a_card_names_paper_payload_and_aggregation(method: str) -> None:
    card = METHODS[method].card
    assert card.title
    assert card.paper
    assert all(card.row)
    assert max(len(text) for text in card.row) <= 40
