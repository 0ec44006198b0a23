"""Options that the paper leaves open, chosen on validation images and never on the test.

The rule: one short run per candidate with the first seed, scored on the validation split; the best mean over clients
after the last round wins, the first of equals. Clustered-FL's thresholds follow from the norms of a pilot instead.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorized_fl.api import Pilot
from factorized_fl.core.errors import UserError
from factorized_fl.reproduce.cells import Cell, read_result, write_result
from factorized_fl.results.rundir import Record

CHOICES = "choices.json"
DOMAINS = "cifar100-domains"
LABELS = tuple(f"{data}-{labels}" for data in ("cifar10", "svhn") for labels in ("permuted-iid", "permuted-non-iid"))
LABELS += tuple(f"{data}-{labels}" for data in ("cifar10", "svhn") for labels in ("iid", "non-iid"))


@dataclass(frozen=True)
class Family:
    """Candidates for some options of a method: where they are tried and for whom the best of them counts."""

    method: str
    preset: str
    rounds: int
    candidates: tuple[Mapping[str, Any], ...]
    methods: tuple[str, ...] = ()  # others that take the same options
    presets: tuple[str, ...] = ()  # empty: all

    def cells(self) -> list[Cell]:
        """One short run per candidate."""
        setting = "domains" if self.preset == DOMAINS else self.preset
        return [
            Cell(
                "choices",
                setting,
                self.method,
                self.preset,
                variant=",".join(f"{name}={value:g}" for name, value in options.items()),
                settings={**options, "rounds": self.rounds, "score": "validation"},
            )
            for options in self.candidates
        ]


# The corners of the paper's ranges of tau and epsilon. With a small epsilon tau decides little: nobody is below it.
_CORNERS = ({"tau": 0.75, "epsilon": 20.0}, {"tau": 0.0, "epsilon": 1.0}, {"tau": 0.0, "epsilon": 20.0})

FAMILIES = (
    Family("factorized-fl", DOMAINS, 20, _CORNERS, ("random-matching", "worst-matching"), (DOMAINS,)),
    Family("factorized-fl-beta", DOMAINS, 20, _CORNERS, (), (DOMAINS,)),
    Family(
        "factorized-peers",
        DOMAINS,
        40,
        tuple({"general": general, "l1": l1} for general, l1 in ((0, True), (0, False), (2, True), (4, True))),
    ),
    Family("fedprox", DOMAINS, 20, tuple({"proximal": mu} for mu in (0.01, 0.001, 0.1, 1.0))),
    Family("pfedpara", DOMAINS, 20, ({"gamma": 0.95}, {"gamma": 1.0})),
    Family("per-fedavg", DOMAINS, 20, tuple({"inner": step} for step in (1e-3, 1e-2, 3e-2))),
    Family("factorized-fl", "cifar10-permuted-iid", 10, _CORNERS[1:], (), LABELS),
    Family("factorized-fl-beta", "cifar10-permuted-iid", 10, _CORNERS[1:], (), LABELS),
)
PILOT_ROUNDS = 5  # the largest mean update comes early


def pilot_cell(preset: str) -> Cell:
    """Clustered-FL that never splits, to see its norms."""
    setting = "domains" if preset == DOMAINS else preset
    settings = {"eps1": 0.0, "rounds": PILOT_ROUNDS, "score": "validation"}
    return Cell("choices", setting, "clustered-fl", preset, variant="pilot", settings=settings)


def choice_cells() -> tuple[Cell, ...]:
    """All short runs that the choices need."""
    tried = [cell for family in FAMILIES for cell in family.cells()]
    return (*tried, *(pilot_cell(preset) for preset in (DOMAINS, *LABELS)))


def choose(results: Path) -> list[Record]:
    """What follows from the short runs that are finished; a family that lacks one says nothing."""
    return [entry for family in FAMILIES if (entry := _best(family, results))] + [
        entry for preset in (DOMAINS, *LABELS) if (entry := _thresholds(preset, results))
    ]


def _best(family: Family, results: Path) -> Record | None:
    found = [read_result(cell.path(results)) for cell in family.cells()]
    scores = [statistics.fmean(result.accuracies()) for result in found if result]
    if len(scores) < len(found):
        return None
    tried = [
        {"options": dict(options), "accuracy": round(score, 4)}
        for options, score in zip(family.candidates, scores, strict=True)
    ]
    return {
        "methods": [family.method, *family.methods],
        "presets": list(family.presets) or None,
        "options": dict(family.candidates[scores.index(max(scores))]),
        "rule": f"best mean validation accuracy after {family.rounds} rounds on {family.preset}, seed 1",
        "tried": tried,
    }


def _thresholds(preset: str, results: Path) -> Record | None:
    result = read_result(pilot_cell(preset).path(results))
    if result is None:
        return None
    norms = result.record["mixing"]["norms"]
    pilot = Pilot([(round, mean, longest) for round, (mean, longest) in enumerate(norms, 2)])
    return {
        "methods": ["clustered-fl"],
        "presets": [preset],
        "options": {"eps1": float(f"{pilot.eps1:.4g}"), "eps2": float(f"{pilot.eps2:.4g}")},
        "rule": f"eps1 = eps2 = a tenth of the largest mean update in {PILOT_ROUNDS} rounds without splits, seed 1",
        "tried": [],
    }


def write_choices(results: Path) -> list[Record]:
    """Keep the choices that can be made so far, for the other studies to read."""
    entries = choose(results)
    if entries:
        write_result(results / CHOICES, {"chosen": entries})
    return entries


def read_choices(results: Path) -> list[Record]:
    """The choices that were made; none without the file."""
    path = results / CHOICES
    try:
        return json.loads(path.read_text(encoding="utf-8"))["chosen"]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError) as error:
        raise UserError(f"The choices '{path}' cannot be read ({error}): remove the file to choose again.") from None


def chosen_options(results: Path) -> Callable[[Cell], Mapping[str, Any]]:
    """For each cell the options that were chosen for its method and preset; none for the choosing itself."""
    entries = read_choices(results)

    def options(cell: Cell) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for entry in entries:
            if cell.what != "choices" and _counts_for(cell.method, cell.preset, entry["methods"], entry["presets"]):
                found |= entry["options"]
        return found

    return options


def not_chosen(cells: Iterable[Cell], results: Path) -> list[str]:
    """Methods and presets among the cells, "fedprox on cifar10-iid", whose open options nobody has chosen yet."""
    entries = read_choices(results)
    planned = [((family.method, *family.methods), family.presets) for family in FAMILIES]
    planned.append((("clustered-fl",), (DOMAINS, *LABELS)))
    return [
        f"{method} on {preset}"
        for method, preset in dict.fromkeys((cell.method, cell.preset) for cell in cells)
        if any(_counts_for(method, preset, *each) for each in planned)
        and not any(_counts_for(method, preset, entry["methods"], entry["presets"]) for entry in entries)
    ]


def _counts_for(method: str, preset: str, methods: Sequence[str], presets: Sequence[str] | None) -> bool:
    """Whether what is chosen for these methods and presets, all if none is named, is for this one."""
    return method in methods and (not presets or preset in presets)
