"""The studies, from grid.toml: for each of the paper's tables and figures the list of its cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from factorized_fl.core.errors import unknown
from studies.paper.cells import DOMAINS, Cell, Key, expand, named_list, read_data

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
        return [_short_run(self.method, self.preset, self.rounds, options) for options in self.candidates]


FAMILIES = tuple(
    Family(**{**table, "presets": named_list(table.get("presets", ()))}) for table in read_data("grid.toml")["choices"]
)


def pilot_cell(preset: str) -> Cell:
    """Return a run of Clustered-FL that never splits, which measures its norms."""
    return replace(_short_run("clustered-fl", preset, PILOT_ROUNDS, {"eps1": 0.0}), variant="pilot")


def _short_run(method: str, preset: str, rounds: int, options: Mapping[str, Any]) -> Cell:
    variant = ",".join(f"{name}={value:g}" for name, value in options.items())
    settings = {**options, "rounds": rounds, "score": "validation"}
    return Cell("choices", "domains" if preset == DOMAINS else preset, method, preset, 1, variant, settings)


STANDS_FOR: Mapping[str, str] = read_data("grid.toml")["reconstruction"]


@dataclass(frozen=True)
class Study:
    """A table or figure: its own cells with the first seed, those it borrows from other studies, and its seeds."""

    name: str
    title: str
    own: tuple[Cell, ...]
    borrowed: tuple[Cell, ...] = ()
    seeds: tuple[int, ...] = (1,)

    @property
    def shown(self) -> tuple[Cell, ...]:
        """All cells that it shows, borrowed and own."""
        return (*self.borrowed, *self.own)

    def cells(self, seeds: Iterable[int] | None = None) -> list[Cell]:
        """Return all cells in the order in which to run them: every first seed before any second one."""
        return [replace(cell, seed=seed) for seed in tuple(seeds or self.seeds) for cell in self.shown]


def _read_studies() -> dict[str, Study]:
    own: dict[str, list[Cell]] = {"choices": [cell for family in FAMILIES for cell in family.cells()]}
    own["choices"] += map(pilot_cell, PILOT_PRESETS)
    tables = {table["name"]: table for table in read_data("grid.toml")["studies"]}
    for name, table in tables.items():
        for fields in (fields for block in table.get("cells", ()) for fields in expand(block)):
            setting, method, preset = fields["setting"], fields["method"], fields["preset"]
            cell = Cell(name, setting, method, preset, 1, fields.get("variant", ""), fields["settings"])
            own.setdefault(name, []).append(cell)
    by_key = {"/".join(cell.key): cell for cells in own.values() for cell in cells}
    studies = {}
    for name, table in tables.items():
        borrowed = tuple(by_key[key] for key in table.get("borrow", ()))
        elsewhere = [replace(cell, study=name, setting="") for cell in borrowed]
        cells = tuple(cell for cell in own.get(name, ()) if replace(cell, setting="") not in elsewhere)
        studies[name] = Study(name, table["title"], cells, borrowed, tuple(table.get("seeds", (1,))))
    return studies


STUDIES: dict[str, Study] = _read_studies()


def find_study(name: str) -> Study:
    """Return the study of that name; raise UserError if there is none."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def select(
    names: Sequence[str], seeds: Sequence[int] = (), methods: Sequence[str] = (), settings: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells of some studies, in order, each once, of some methods or settings only if any are given.

    Choices come first, because the other studies depend on them.
    """
    cells: dict[str, Cell] = {}
    for name in sorted(names, key=lambda name: name != "choices"):
        for cell in find_study(name).cells(seeds):
            cells.setdefault(cell.name, cell)
    for what, given in (("method", methods), ("setting", settings)):
        words = {name: {cell.setting} if what == "setting" else {cell.method, cell.row} for name, cell in cells.items()}
        known = set().union(*words.values())
        for word in given:
            if word not in known:
                raise unknown(what, word, known)
        cells = {name: cell for name, cell in cells.items() if not given or words[name] & set(given)}
    return list(cells.values())


def reconstruction() -> dict[Key, Cell]:
    """Return for each reconstructed cell the deviation that stands for it."""
    cells = STUDIES["deviations"].shown
    return {c.about: c for c in cells if c.variant == STANDS_FOR.get(c.method, STANDS_FOR["factorised"])}
