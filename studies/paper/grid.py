"""The studies: for each of the paper's tables and figures the list of its cells, from grid.toml."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from factorized_fl.core.errors import unknown
from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from studies.paper.cells import Cell, Key, expand, read_data
from studies.paper.choices import DOMAINS, choice_cells

PRESETS: Mapping[str, str] = read_data("grid.toml")["presets"]
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


def _cells(study: str, blocks: Iterable[Mapping[str, Any]]) -> list[Cell]:
    cells = []
    for fields in (fields for block in blocks for fields in expand(block)):
        setting = fields["setting"].format(**fields)
        preset = fields.get("preset", "{preset}").format(**{**fields, "preset": PRESETS.get(setting)})
        variant = fields.get("variant", "")
        cells.append(Cell(study, setting, fields["method"], preset, variant=variant, settings=fields["settings"]))
    return cells


def _read_studies() -> dict[str, Study]:
    tables = read_data("grid.toml")["studies"]
    own = {table["name"]: _cells(table["name"], table.get("cells", ())) for table in tables}
    own["choices"] = list(choice_cells())
    by_key = {"/".join(cell.key): cell for cells in own.values() for cell in cells}
    studies = {}
    for table in tables:
        name = table["name"]
        borrowed = tuple(by_key[key] for key in table.get("borrow", ()))
        elsewhere = [replace(cell, study=name, setting="") for cell in borrowed]
        cells = tuple(cell for cell in own[name] if replace(cell, setting="") not in elsewhere)
        studies[name] = Study(name, table["title"], cells, borrowed, tuple(table.get("seeds", (1,))))
    return studies


STUDIES: dict[str, Study] = _read_studies()


def find_study(name: str) -> Study:
    """Return the study of that name; raise UserError if there is none."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def select(
    names: Sequence[str],
    seeds: Sequence[int] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
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


# -- deviations: cells that are to explain a difference from the paper


def origin(cell: Cell) -> tuple[str, str]:
    """Return the study and the setting whose numbers a deviation is to explain."""
    if cell.preset.startswith(DOMAINS):
        return "domains", "domains"
    if cell.setting.startswith("svhn-"):
        return "label-svhn", cell.setting.removeprefix("svhn-")
    return ("label-cifar10" if cell.setting in PRESETS else "architectures"), cell.setting


def deviation_setting(study: str, setting: str) -> str:
    """Return the name that the study of deviations gives to a setting of another study."""
    return f"svhn-{setting}" if study == "label-svhn" else setting


def has_other_draw(cell: Cell) -> bool:
    """Return whether a deviation draws its non-IID partition with another seed."""
    return "partition_seed" in cell.settings


def without_draw(row: str) -> str:
    """Return a row's name without the draw of its partition."""
    return row.partition("+draw=")[0]


def reconstructs(cell: Cell) -> bool:
    """Return whether a deviation stands for its method where the published runs are reconstructed."""
    return cell.variant == STANDS_FOR.get(cell.method, STANDS_FOR["factorised"])


def is_reconstructed(method: str) -> bool:
    """Return whether a method's runs are replaced where the published runs are reconstructed."""
    return method in STANDS_FOR or issubclass(METHODS[method], Factorized)


def reconstruction() -> dict[Key, Cell]:
    """Return for each reconstructed cell the deviation that stands for it."""
    return {(*origin(cell), cell.method): cell for cell in STUDIES["departures"].shown if reconstructs(cell)}
