"""The runs that choose what the profile `tuned` holds: learning rates of all methods, and options of Factorized-FL.

A cell is one run: a preset, a method, settings and a seed. Cells run anywhere that `ffl run` does; what collect.py
reads are files as `python -m studies.mini run` and `ffl bench` write them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factorized_fl.api import configure
from factorized_fl.bench.cells import Place, run_cells
from factorized_fl.bench.suites import Cell
from factorized_fl.methods import METHODS
from factorized_fl.results.entries import Entry

PRESET = "mini-domains"
RATES = (0.03, 0.01, 0.003, 0.001)  # those that were seen to be best come first
SEEDS = (1, 2, 3)  # of the options; learning rates are tried with the first
OPTIONS_RATE = 0.01  # with which options are tried

# Methods that do not try rates of their own. Those of FedAvg train as FedAvg does; FedPer shares what FedAvg shares
# where labels are numbered differently. Those of Factorized-FL are its control and its ablations.
SAME_RATE: Mapping[str, str] = {
    **dict.fromkeys(("clustered-fl", "fedper", "knn-per"), "fedavg"),
    **dict.fromkeys(("factorized-fedavg", "random-matching", "worst-matching", "mixed-layout"), "factorized-fl"),
}
# FedProto needs one numbering of the classes in all clients.
OTHER_PRESET: Mapping[str, str] = {"fedproto": "mini-cifar"}

# What the paper leaves open in Factorized-FL. The first entry is the method's defaults.
_MATCHING = [{"tau": tau, "epsilon": epsilon} for tau in (0.5, 0.0, 0.75) for epsilon in (10.0, 1.0, 20.0)]
_PENALTIES: list[dict[str, Any]] = [{}, {"l1": False}, {"penalty": "epoch"}]
_HEADS: list[dict[str, Any]] = [{}, {"head_mu": "xavier"}]
OPTIONS: list[dict[str, Any]] = [
    *({} if matching == {"tau": 0.5, "epsilon": 10.0} else matching for matching in _MATCHING),
    *({**penalty, **head} for head in _HEADS for penalty in _PENALTIES if penalty or head),
    {"head_mu": "xavier", "tau": 0.0, "epsilon": 1.0},
    {"head_mu": "xavier", "tau": 0.75, "epsilon": 20.0},
]


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    study: str  # rates or options
    method: str
    preset: str = PRESET
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1

    @property
    def cell(self) -> Cell:
        """Return the run as a cell of a benchmark suite, which is named after the study."""
        entry = Entry(self.method, self.settings)
        config = configure(self.preset, self.method, **entry.settings({"recalibrate": True, "seed": self.seed}))
        return Cell(self.study, entry.name, self.seed, config)

    def record(self) -> dict[str, Any]:
        """Return the run for a JSON file; `name` is unique among all runs of both studies."""
        return {
            "name": f"{self.study}/{self.cell.name}",
            "preset": self.preset,
            "method": self.method,
            "settings": {"recalibrate": True, **self.settings},
            "seed": self.seed,
        }


def planned(study: str = "") -> list[Planned]:
    """Return the runs of one study, or of both without a name, the most informative ones first."""
    found = []
    if study in ("", "options"):
        found += [
            Planned("options", "factorized-fl", settings={"lr": OPTIONS_RATE, **own}, seed=seed)
            for seed in SEEDS
            for own in OPTIONS
        ]
    if study in ("", "rates"):
        methods = [name for name in METHODS if name not in SAME_RATE]
        found += [
            Planned("rates", name, OTHER_PRESET.get(name, PRESET), {"lr": rate}) for rate in RATES for name in methods
        ]
    return found


def run_planned(study: str, results: Path, work: Path, *, data: Path | None, jobs: int) -> Iterator[tuple[str, str]]:
    """Run what is missing; yield each run's name with "was done", "done" or the sentence of its error."""
    cells = [one.cell for one in planned(study)]
    for cell, state in run_cells(cells, Place(results, work, data), jobs):
        yield f"{cell.suite}/{cell.name}", state
