"""The study of options that the paper leaves open in Factorized-FL, tried on mini-domains with three seeds.

A run is a cell as `ffl bench` makes them. `write_options` compares each choice with the defaults on validation images.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from factorized_fl.api import configure
from factorized_fl.bench.cells import Place, Record, read_cell, run_cells
from factorized_fl.bench.suites import Cell
from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.results.entries import Entry
from factorized_fl.results.statistic import Estimate, compare_paired, holm, paired_from_counts
from studies.runner import layout

FILE = Path(__file__).parents[2] / "results" / "mini" / "options.json"
# The rate is the one that `ffl bench mini-domains --tune` chose.
PRESET, METHOD, RATE, SEEDS = "mini-domains", "factorized-fl", 0.003, (1, 2, 3)

# The first choice is the defaults. The pairs (0, 1) and (0.75, 20) are candidates of the reproduction.
_MATCHING = [{"tau": 0.0, "epsilon": epsilon} for epsilon in (1.0, 10.0, 20.0)] + [{"tau": 0.75, "epsilon": 20.0}]
_PENALTIES: list[dict[str, Any]] = [{}, {"l1": False}, {"penalty": "epoch"}]
_HEADS: list[dict[str, Any]] = [{}, {"head_mu": "xavier"}]
OPTIONS: list[dict[str, Any]] = [
    {},
    *_MATCHING,
    *({**penalty, **head} for head in _HEADS for penalty in _PENALTIES if penalty or head),
]


def planned(choices: Sequence[Mapping[str, Any]] = OPTIONS, preset: str = PRESET, **settings: Any) -> list[Cell]:
    """Return the runs of the study, seed by seed."""
    found = []
    for seed in SEEDS:
        for choice in choices:
            entry = Entry(METHOD, {"lr": RATE, **choice})
            config = configure(preset, METHOD, **entry.settings({"recalibrate": True, "seed": seed, **settings}))
            found.append(Cell("options", entry.name, seed, config))
    return found


def run_planned(results: Path, work: Path, *, data: Path | None, jobs: int) -> Iterator[tuple[str, str]]:
    """Run what is missing; yield each run's name with "was done", "done" or the sentence of its error."""
    for cell, state in run_cells(planned(), Place(results, work, data), jobs):
        yield cell.name, state


def write_options(folder: Path, out: Path = FILE) -> None:
    """Write the accuracy on validation images with each choice of options, and the differences from the defaults.

    A difference is over the seeds that both have; p-values are adjusted by Holm for all choices. Raise UserError if the
    folder has no run with the defaults.
    """
    records = [read_cell(path) for path in sorted(folder.rglob("*.json"))]
    choices: dict[str, dict[int, Record]] = {}
    for record in records:
        usual = _flat(planned([{}], record["configuration"]["preset"])[0].config)
        config = _flat(from_table(record["configuration"]))
        own = {key: value for key, value in config.items() if key in _names() and usual[key] != value}
        choices.setdefault(json.dumps(own, sort_keys=True), {})[record["seed"]] = record
    if (defaults := choices.get("{}")) is None:
        raise UserError(f"'{folder}' has no run with the defaults of Factorized-FL: run `python -m studies.mini run`.")
    estimates = {key: _on_validation(of, defaults) for key, of in choices.items() if key != "{}"}
    adjusted = holm({key: estimate.p for key, estimate in estimates.items() if estimate})
    found = []
    for key, runs in choices.items():
        one: Record = {"settings": json.loads(key), "seeds": sorted(runs)}
        one |= {part: [round(_mean(runs[seed], part), 5) for seed in sorted(runs)] for part in ("validation", "test")}
        if estimate := estimates.get(key):
            one |= {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "p": adjusted[key]}
        found.append(one)
    found.sort(key=lambda one: -fmean(one["validation"]))
    origins = [{key: record[key] for key in ("entry", "seed", "commit", "machine", "seconds")} for record in records]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, (layout({"preset": PRESET, "choices": found, "runs": origins}) + "\n").encode())


def _names() -> set[str]:
    return {name for choice in OPTIONS for name in choice}


def _mean(record: Record, part: str) -> float:
    return float(record["summary"]["score_means"]["recalibrated"][part])


def _on_validation(ours: Mapping[int, Record], theirs: Mapping[int, Record]) -> Estimate | None:
    """Return the mean difference on validation images over the seeds that both have; None without any."""
    tests = []
    for seed in sorted(ours.keys() & theirs.keys()):
        for one, other in zip(*(of[seed]["summary"]["clients"] for of in (ours, theirs)), strict=True):
            counts = [client["scores"]["recalibrated"]["validation"] for client in (one, other)]
            right, reference = ((count["correct"], count["total"]) for count in counts)
            tests.append(paired_from_counts(one["client"], seed, right, reference, one["domain"]))
    found = compare_paired(tests)
    return None if found is None else found.mean


def _flat(config: Config) -> dict[str, Any]:
    """Return all settings and options in one dictionary."""
    return {**{key: value for key, value in vars(config).items() if key != "options"}, **config.options}
