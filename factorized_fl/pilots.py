"""A pilot of Clustered-FL: one run without splits, which measures the norms that its thresholds follow from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorized_fl.api import configure, run
from factorized_fl.core.errors import UserError
from factorized_fl.simulate.run import Observer


@dataclass(frozen=True)
class Pilot:
    """Clustered-FL's two norms in a run without splits, and the thresholds they suggest (docs/methods.md)."""

    norms: list[tuple[int, float, float]]  # round, norm of the mean update, norm of the longest update

    @property
    def eps1(self) -> float:
        """Return a tenth of the norm of the largest mean update."""
        return max(mean for _, mean, _ in self.norms) / 10

    @property
    def eps2(self) -> float:
        """Return the lenient end of the range from eps1 to ten times eps1."""
        return self.eps1


def pilot(
    preset: str,
    /,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    device: str = "auto",
    **settings: Any,
) -> Pilot:
    """Run Clustered-FL without splits and return the norms of its updates."""
    if {"eps1", "clustered-fl.eps1"} & settings.keys():
        raise UserError("A pilot finds eps1: leave it out.")
    config = configure(preset, "clustered-fl", **{"rule": "norms", **settings}, eps1=0.0)
    if config.rounds < 2:
        raise UserError("A pilot needs at least 2 rounds: the first one has nothing to aggregate.")
    directory = run(
        config, out or f"runs/{Path(preset).stem}-pilot", data=data, resume=resume, observers=observers, device=device
    )
    norms = [(number, *directory.mixing(number)["state.norms"].tolist()) for number in directory.mixed_rounds()]
    if not norms:
        raise UserError("No round of this pilot had anything to aggregate: choose a smaller dropout, or more rounds.")
    if not all(math.isfinite(norm) for row in norms for norm in row):
        raise UserError("Training diverged in this pilot, so its norms are useless: choose a smaller lr.")
    return Pilot(norms)
