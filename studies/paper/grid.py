"""The studies: for each of the paper's tables and figures the list of its cells, from grid.toml."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from factorized_fl.errors import unknown
from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from studies.paper.cells import Cell, Key, expand, read_data
from studies.paper.choices import choice_cells

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
        wanted = tuple(seeds or self.seeds)
        return [replace(cell, seed=seed) for seed in wanted for cell in self.shown]


def _read_studies() -> dict[str, Study]:
    own: dict[str, list[Cell]] = {"choices": list(choice_cells())}
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


def has_other_draw(cell: Cell) -> bool:
    """Return whether a deviation draws its non-IID partition with another seed."""
    return "partition_seed" in cell.settings


def is_reconstructed(method: str) -> bool:
    """Return whether a method's runs are replaced where the published runs are reconstructed."""
    return method in STANDS_FOR or issubclass(METHODS[method], Factorized)


def reconstruction() -> dict[Key, Cell]:
    """Return for each reconstructed cell the deviation that stands for it."""
    cells = STUDIES["departures"].shown
    return {c.about: c for c in cells if c.variant == STANDS_FOR.get(c.method, STANDS_FOR["factorised"])}
