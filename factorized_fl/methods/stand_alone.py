"""Stand-Alone: every client trains on its own; the floor that a federation has to beat."""

from dataclasses import dataclass

from factorized_fl.methods.base import Method


@dataclass(frozen=True)
class StandAlone(Method):
    """Local training without communication."""

    name = "stand-alone"
    title = "Stand-Alone"
    paper = "-"
    row = ("dense", "SGD", "nothing", "identity")
