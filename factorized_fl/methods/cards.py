"""The cards of the package's own methods: cards.toml holds their texts and published costs."""

import tomllib
from pathlib import Path
from typing import Any

from factorized_fl.core.card import Card

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def card_of(name: str, **formulas: Any) -> Card:
    """The card of the method with this name in cards.toml; `formulas` are the card's fields that hold functions."""
    return Card(**_TEXTS[name], **formulas)
