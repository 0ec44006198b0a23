"""Options that the paper leaves open, chosen on validation images and never on test images.

Each candidate has one short run with the first seed, scored on the validation images; the candidate with the best mean
over clients after the last round is chosen, the first one of equals. Clustered-FL's thresholds follow from the norms of
a pilot run instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorized_fl.api import Pilot
from factorized_fl.federation.rundir import Record
from studies.paper.cells import DOMAINS, Cell, named_list, read_data
from studies.paper.runs import read_run
from studies.runner import read_record, write_record

CHOICES = "choices.json"
PILOT_PRESETS = (DOMAINS, *named_list("label-presets"))
PILOT_ROUNDS = 5  # the largest mean update comes early


@dataclass(frozen=True)
class Family:
    """Candidates for some options of a method, where they are tried and what the choice is valid for."""

    method: str
    preset: str
    rounds: int
    candidates: Sequence[Mapping[str, Any]]
    methods: Sequence[str] = ()  # further methods that take the same options
    presets: Sequence[str] = ()  # empty: all

    def cells(self) -> list[Cell]:
        """Return one short run per candidate."""
        names = [",".join(f"{name}={value:g}" for name, value in options.items()) for options in self.candidates]
        settings = [{**options, "rounds": self.rounds} for options in self.candidates]
        return [_short_run(self.method, self.preset, *each) for each in zip(names, settings, strict=True)]


FAMILIES = tuple(
    Family(**{**table, "presets": named_list(table.get("presets", ()))}) for table in read_data("grid.toml")["choices"]
)


def _short_run(method: str, preset: str, variant: str, settings: Mapping[str, Any]) -> Cell:
    setting = "domains" if preset == DOMAINS else preset
    return Cell("choices", setting, method, preset, variant=variant, settings={**settings, "score": "validation"})


def pilot_cell(preset: str) -> Cell:
    """Return a run of Clustered-FL that never splits, which measures its norms."""
    return _short_run("clustered-fl", preset, "pilot", {"eps1": 0.0, "rounds": PILOT_ROUNDS})


def choice_cells() -> tuple[Cell, ...]:
    """Return all short runs that the choices need."""
    return (*(cell for family in FAMILIES for cell in family.cells()), *map(pilot_cell, PILOT_PRESETS))


def choose(results: Path) -> list[Record]:
    """Return the choices that follow from the short runs; those with an unfinished run are left out."""
    made: list[Record] = []
    for family in FAMILIES:
        runs = [run for cell in family.cells() if (run := read_run(cell.path(results)))]
        scores = [(run.measure("percent") or 0.0) / 100 for run in runs]
        if len(scores) == len(family.candidates):
            tried = [
                {"options": dict(c), "accuracy": round(s, 4)} for c, s in zip(family.candidates, scores, strict=True)
            ]
            rule = f"best mean validation accuracy after {family.rounds} rounds on {family.preset}, seed 1"
            best = dict(family.candidates[scores.index(max(scores))])
            made.append(_choice([family.method, *family.methods], list(family.presets), best, rule, tried))
    for preset in PILOT_PRESETS:
        if run := read_run(pilot_cell(preset).path(results)):
            pilot = Pilot([(number, *norms) for number, norms in enumerate(run.record["mixing"]["norms"], 2)])
            thresholds = {"eps1": float(f"{pilot.eps1:.4g}"), "eps2": float(f"{pilot.eps2:.4g}")}
            rule = f"eps1 = eps2 = a tenth of the largest mean update in {PILOT_ROUNDS} rounds without splits, seed 1"
            made.append(_choice(["clustered-fl"], [preset], thresholds, rule, []))
    return made


def _choice(methods: list[str], presets: list[str], options: Record, rule: str, tried: list[Record]) -> Record:
    return {"methods": methods, "presets": presets or None, "options": options, "rule": rule, "tried": tried}


def write_choices(results: Path) -> list[Record]:
    """Write and return the choices that can be made so far; the other studies read them."""
    entries = choose(results)
    if entries:
        write_record(results / CHOICES, {"chosen": entries})
    return entries


def read_choices(results: Path) -> list[Record]:
    """Return the choices that were made; none if there is no file."""
    path = results / CHOICES
    return read_record(path, "chosen")["chosen"] if path.exists() else []


def chosen_options(results: Path) -> Callable[[Cell], Mapping[str, Any]]:
    """Return a function from a cell to the options chosen for its method and preset; none for the short runs."""
    entries = read_choices(results)

    def options(cell: Cell) -> Mapping[str, Any]:
        chosen: dict[str, Any] = {}
        for entry in entries:
            if cell.study != "choices" and _valid_for(cell, entry["methods"], entry["presets"]):
                chosen |= entry["options"]
        return chosen

    return options


def not_chosen(cells: Iterable[Cell], results: Path) -> list[str]:
    """Return the methods and presets, as "fedprox on cifar10-iid", whose open options were not chosen yet."""
    entries = [(entry["methods"], entry["presets"]) for entry in read_choices(results)]
    planned: list[tuple[Sequence[str], Sequence[str]]] = [((f.method, *f.methods), f.presets) for f in FAMILIES]
    planned.append((("clustered-fl",), PILOT_PRESETS))
    open_cells = [cell for cell in cells if any(_valid_for(cell, *each) for each in planned)]
    missing = [cell for cell in open_cells if not any(_valid_for(cell, *each) for each in entries)]
    return list(dict.fromkeys(f"{cell.method} on {cell.preset}" for cell in missing))


def _valid_for(cell: Cell, methods: Sequence[str], presets: Sequence[str] | None) -> bool:
    """Return whether a choice for these methods and presets, all if none is named, is valid for a cell."""
    return cell.method in methods and (not presets or cell.preset in presets)
