"""Stand-Alone: every client trains on its own; the baseline that a federation has to beat."""

from dataclasses import dataclass

from factorized_fl.core.method import Method
from factorized_fl.methods.cards import card_of


@dataclass(frozen=True)
class StandAlone(Method):
    """Every client trains on its own images only: the baseline that a federation has to beat."""

    name = "stand-alone"
    card = card_of("stand-alone")
