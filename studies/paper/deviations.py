"""Where our numbers are far from the paper's, and which deviation or open choice brings them near."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from studies.paper.cells import ALL_EPOCHS, Cell, Key, title
from studies.paper.grid import STUDIES, has_other_draw, reconstruction, without_draw
from studies.paper.rows import Row, rows_of
from studies.paper.runs import mean_of
from studies.paper.table import Table

CLOSE = 2.5  # points within which a number counts as reproduced


def distance(row: Row) -> float:
    """Return by how many points a row differs from the paper."""
    return abs(row.difference or 0)


def near(row: Row) -> bool:
    """Return whether a row agrees with the paper."""
    return distance(row) <= CLOSE


def comparable_rows(table: Table) -> list[Row]:
    """Return the rows whose published number is compared: no single domains, single clients after all epochs."""
    rows = [*rows_of("label-cifar10", table), *rows_of("label-svhn", table)]
    rows += [replace(row, setting="domains") for row in rows_of("domains", table) if row.setting == "average"]
    ending = f", {ALL_EPOCHS}"
    single = [row for row in rows_of("architectures", table) if row.setting.endswith(ending)]
    return rows + [replace(row, setting=row.setting.removesuffix(ending)) for row in single]


def deviation_rows(table: Table) -> list[tuple[Cell, Row]]:
    """Return every deviation with its row."""
    return list(zip(STUDIES["departures"].shown, rows_of("departures", table), strict=True))


class Far(NamedTuple):
    """A mean far from the paper's, and its runs with something changed."""

    row: Row
    tried: tuple[Row, ...]
    drawn: tuple[Row, ...]  # with other draws of the partition, which explain nothing by themselves
    has_options: bool  # whether there is anything to change

    @property
    def near(self) -> list[Row]:
        """The changed runs that agree with the paper."""
        return list(filter(near, self.tried))

    @property
    def nearest(self) -> Row:
        """The run that is closest to the paper, possibly the row itself."""
        return min((*self.tried, self.row), key=distance)


def far_from_paper(table: Table) -> list[Far]:
    """Return the means that differ by more than CLOSE points."""
    about: dict[Key, list[tuple[Cell, Row]]] = {}
    for cell, row in deviation_rows(table):
        about.setdefault(cell.about, []).append((cell, row))
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
        return cell.study == "departures" and cell.about not in far, has_other_draw(cell)

    return sorted(cells, key=later)


def by_family(rows: Sequence[Row], far: Sequence[Far]) -> list[list[object]]:
    """Return per method, single clients apart, how many means are far, were looked into and brought near.

    Last are the mean distances from the paper of those looked into, as they stand and in their nearest runs.
    """

    def family(row: Row) -> str:
        return f"{title(row.method)}, single client" if row.study == "architectures" else title(row.method)

    lines: list[list[object]] = []
    for name in dict.fromkeys(map(family, rows)):
        run = [row for row in rows if family(row) == name and row.difference is not None]
        some = [one for one in far if family(one.row) == name]
        tried = [one for one in some if one.tried]
        if some:
            columns = [[distance(one.row) for one in tried], [distance(one.nearest) for one in tried]]
            means = [f"{fmean(column):.2f}" if column else "-" for column in columns]
            lines.append([name, len(run), len(some), len(tried), sum(bool(one.near) for one in some), *means])
    return lines


def other_draws(table: Table) -> list[tuple[str, str, list[Row]]]:
    """Return per setting and method the row as in the tables and those with other draws, where any was run."""
    rows = {cell.key: row for cell, row in deviation_rows(table)}
    first = {(row.study, row.setting, row.method): row for row in comparable_rows(table)} | rows
    drawn: dict[tuple[str, str], list[Row]] = {}
    for cell in filter(has_other_draw, STUDIES["departures"].own):
        key = (cell.study, cell.setting, without_draw(cell.row))
        as_shown = first[key if "+" in key[2] else cell.about]
        drawn.setdefault(key[1:], [as_shown]).append(rows[cell.key])
    return [(*key, some) for key, some in drawn.items() if any(row.ours is not None for row in some[1:])]


def equivalent_columns(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the pairs of Stand-Alone's rows with and without permuted labels, which measure the same."""
    alone = {(row.study, row.setting): row for row in rows if row.method == "stand-alone"}
    pairs = {key: (key[0], key[1].replace("standard", "permuted")) for key in alone if "standard" in key[1]}
    return [(alone[key], alone[other]) for key, other in pairs.items()]


def last_or_best(rows: Sequence[Row], table: Table) -> list[tuple[object, ...]]:
    """Return per place how many means were run and are near, by the last round and by each client's best round."""
    places: dict[str, list[tuple[bool, bool]]] = {}
    for row in rows:
        best = mean_of(table.of(row.study, row.setting, row.method), "best")
        if row.paper is not None and best is not None:
            place = "single clients" if row.study == "architectures" else f"{row.study}, {row.setting}"
            pair = (near(row), abs(best.value - row.paper) <= CLOSE)
            places.setdefault(place.removesuffix(", domains"), []).append(pair)
    return [(place, len(pairs), *map(sum, zip(*pairs, strict=True))) for place, pairs in places.items()]


def reconstructed_rows(table: Table) -> list[Row]:
    """Return the rows of Table 1 that stand for others where the published runs are reconstructed."""
    used = [cell for key, cell in reconstruction().items() if key[0] != "architectures"]
    return [row for cell, row in deviation_rows(table) if cell in used and row.difference is not None]
