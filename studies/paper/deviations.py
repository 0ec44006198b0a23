"""Where our numbers are far from the paper's, and which deviation or open choice brings them near."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from studies.paper.cells import Cell, Key, title
from studies.paper.grid import STUDIES, deviation_setting, has_other_draw, origin, reconstructs, without_draw
from studies.paper.published import AVERAGE
from studies.paper.rows import ALL_EPOCHS, Row, rows_of
from studies.paper.runs import best_accuracy
from studies.paper.table import Table

CLOSE = 2.5  # points within which a number counts as reproduced


def near(row: Row) -> bool:
    """Return whether a row agrees with the paper."""
    return abs(row.difference or 0) <= CLOSE


def distance(row: Row) -> float:
    """Return by how many points a row differs from the paper."""
    return abs(row.difference or 0)


def comparable_rows(table: Table) -> list[Row]:
    """Return the rows whose published number is compared: no single domains, single clients after all epochs."""
    rows = [*rows_of("label-cifar10", table), *rows_of("label-svhn", table)]
    rows += [replace(row, setting="domains") for row in rows_of("domains", table) if row.setting == AVERAGE]
    rows += [
        replace(row, setting=row.setting.removesuffix(f", {ALL_EPOCHS}"))
        for row in rows_of("architectures", table)
        if row.setting.endswith(ALL_EPOCHS)
    ]
    return rows


def deviation_rows(table: Table) -> list[tuple[Cell, Row]]:
    """Return every deviation with its row."""
    return list(zip(STUDIES["departures"].shown, rows_of("departures", table), strict=True))


@dataclass(frozen=True)
class Far:
    """A mean far from the paper's, and its runs with something changed."""

    row: Row
    tried: tuple[Row, ...]
    drawn: tuple[Row, ...]  # with other draws of the partition, which explain nothing by themselves
    has_options: bool  # whether there is anything to change

    @property
    def near(self) -> list[Row]:
        """The changed runs that agree with the paper."""
        return [row for row in self.tried if near(row)]

    @property
    def nearest(self) -> Row:
        """The run that is closest to the paper, possibly the row itself."""
        return min((*self.tried, self.row), key=distance)


def far_from_paper(table: Table) -> list[Far]:
    """Return the means that differ by more than CLOSE points."""
    about: dict[Key, list[tuple[Cell, Row]]] = {}
    for cell, row in deviation_rows(table):
        about.setdefault((*origin(cell), cell.method), []).append((cell, row))
    far = []
    for row in (row for row in comparable_rows(table) if not near(row)):
        others = about.get((row.study, row.setting, row.method), [])
        ran = [(cell, other) for cell, other in others if other.difference is not None]
        tried, drawn = (tuple(r for cell, r in ran if has_other_draw(cell) is drawn) for drawn in (False, True))
        far.append(Far(row, tried, drawn, bool(others)))
    return far


def unexplained_first(cells: Sequence[Cell], table: Table) -> list[Cell]:
    """Return the cells with the deviations last whose number is near, was brought near, or is unknown.

    Among the others, those with other draws come last, because they explain nothing by themselves.
    """
    far = {(one.row.study, one.row.setting, one.row.method) for one in far_from_paper(table) if not one.near}

    def later(cell: Cell) -> tuple[bool, bool]:
        return cell.study == "departures" and (*origin(cell), cell.method) not in far, has_other_draw(cell)

    return sorted(cells, key=later)


def family(row: Row) -> str:
    """Return the method that a row counts for, single clients apart."""
    return f"{title(row.method)}, single client" if row.study == "architectures" else title(row.method)


def by_family(rows: Sequence[Row], far: Sequence[Far]) -> list[list[str]]:
    """Return per method how many means are far, were looked into and brought near, and their mean distances."""
    lines = []
    for name in dict.fromkeys(map(family, rows)):
        run = [row for row in rows if family(row) == name and row.difference is not None]
        some = [one for one in far if family(one.row) == name]
        tried = [one for one in some if one.tried]
        if some:
            columns = [[distance(one.row) for one in tried], [distance(one.nearest) for one in tried]]
            means = [f"{statistics.fmean(column):.2f}" if column else "-" for column in columns]
            lines.append([name, len(run), len(some), len(tried), sum(bool(one.near) for one in some), *means])
    return lines


def other_draws(table: Table) -> list[tuple[str, str, list[Row]]]:
    """Return per setting and method the row as in the tables and those with other draws, where any was run."""
    rows = {(row.setting, row.method): row for row in rows_of("departures", table)}
    first = {(deviation_setting(row.study, row.setting), row.method): row for row in comparable_rows(table)} | rows
    drawn: dict[tuple[str, str], list[Row]] = {}
    for cell in filter(has_other_draw, STUDIES["departures"].own):
        drawn.setdefault((cell.setting, without_draw(cell.row)), []).append(rows[cell.setting, cell.row])
    return [(*key, [first[key], *some]) for key, some in drawn.items() if any(row.ours is not None for row in some)]


def equivalent_columns(rows: Sequence[Row]) -> list[tuple[str, list[float | None]]]:
    """Return by how much Stand-Alone's columns with and without permuted labels differ, in the paper and in ours."""
    alone = {(row.study, row.setting): row for row in rows if row.method == "stand-alone"}
    found = []
    for (study, setting), row in alone.items():
        permuted = alone.get((study, setting.replace("standard", "permuted")))
        if setting.startswith("standard") and permuted:
            pairs = ((row.paper, permuted.paper), (row.ours, permuted.ours))
            gaps = [None if a is None or b is None else abs(a - b) for a, b in pairs]
            found.append((f"{study}, {setting.removeprefix('standard-')}", gaps))
    return found


def last_or_best(rows: Sequence[Row], table: Table) -> list[tuple[str, int, int, int]]:
    """Return per place how many means were run and are near the paper's, by the last round and by each client's best."""
    places: dict[str, list[tuple[bool, bool]]] = {}
    for row in rows:
        best = best_accuracy(table.of(row.study, row.setting, row.method))
        if row.paper is not None and best is not None:
            place = "single clients" if row.study == "architectures" else f"{row.study}, {row.setting}"
            pair = (near(row), abs(best - row.paper) <= CLOSE)
            places.setdefault(place.removesuffix(", domains"), []).append(pair)
    return [(place, len(pairs), *map(sum, zip(*pairs, strict=True))) for place, pairs in places.items()]  # type: ignore[misc]


def reconstructed_rows(table: Table, ending: str) -> list[Row]:
    """Return the rows of Table 1 that stand for others, with non-IID partitions (by their ending) or with equal ones."""
    return [
        row
        for cell, row in deviation_rows(table)
        if reconstructs(cell) and row.difference is not None and origin(cell)[0] != "architectures"
        if row.setting.endswith("non-iid") is (ending == "non-iid")
    ]
