"""What the results show beyond single numbers: where they are far from the paper's, and what brings them near."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from studies.paper.cells import ALL_EPOCHS, Cell, Key, title
from studies.paper.grid import STUDIES, has_other_draw
from studies.paper.rows import Row, rows_of
from studies.paper.runs import Run, mean_of
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
    tried: Sequence[Row]
    drawn: Sequence[Row]  # with other draws of the partition, which explain nothing by themselves
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
    far, deviations = [], deviation_rows(table)
    for row in (row for row in comparable_rows(table) if not near(row)):
        about = [(cell, other) for cell, other in deviations if cell.about == (row.study, row.setting, row.method)]
        ran = [(has_other_draw(cell), other) for cell, other in about if other.difference is not None]
        tried, drawn = ([other for is_drawn, other in ran if is_drawn is wanted] for wanted in (False, True))
        far.append(Far(row, tried, drawn, bool(about)))
    return far


def unexplained_first(cells: Sequence[Cell], table: Table) -> list[Cell]:
    """Return the cells with the deviations last whose number is near, was brought near, or is unknown.

    Among the others, those with other draws come last, because they explain nothing by themselves.
    """
    far = {(one.row.study, one.row.setting, one.row.method) for one in far_from_paper(table) if not one.near}
    return sorted(cells, key=lambda cell: (cell.study == "departures" and cell.about not in far, has_other_draw(cell)))


def by_family(rows: Sequence[Row], far: Sequence[Far]) -> list[list[object]]:
    """Return per method, single clients apart, how many means are far, were looked into and brought near.

    Last are the mean distances from the paper of those looked into, as they stand and in their nearest runs.
    """
    families: dict[str, list[Row]] = {}
    for row in (row for row in rows if row.difference is not None):
        ending = ", single client" if row.study == "architectures" else ""
        families.setdefault(f"{title(row.method)}{ending}", []).append(row)
    lines: list[list[object]] = []
    for name, run in families.items():
        some = [one for one in far if one.row in run]
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
        name = cell.row.partition("+draw=")[0]
        as_shown = first[(cell.study, cell.setting, name) if "+" in name else cell.about]
        drawn.setdefault((cell.setting, name), [as_shown]).append(rows[cell.key])
    return [(*key, some) for key, some in drawn.items() if any(row.ours is not None for row in some[1:])]


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


class Gains(NamedTuple):
    """Points that clients of our own method gained over another cell."""

    row: str
    setting: str
    over: str
    seeds: tuple[int, ...]
    own_weight: float  # that clients give to their own domain, themselves included, from the second round on
    by_domain: dict[str, list[float]]

    @property
    def points(self) -> list[float]:
        """The points of all clients and seeds."""
        return [gain for some in self.by_domain.values() for gain in some]

    @property
    def harmed(self) -> int:
        """How many clients lost more than a point."""
        return sum(gain < -1 - 1e-9 for gain in self.points)


def gains(table: Table) -> Iterator[Gains]:
    """Yield the gains of our own method in all settings that were run with both cells."""
    for setting in ("domains", "domains-unequal", "domains-dirichlet", "domains-random-labels"):
        usual = setting in ("domains", "domains-random-labels")  # random labels do not affect Stand-Alone
        for row in ("factorized-peers", "factorized-peers+not-settled"):
            others: dict[str, Key] = {"Stand-Alone": ("domains", "domains", "stand-alone")}
            if not usual:
                others = {"Stand-Alone": ("beyond", setting, "stand-alone")}
            others[title("stand-alone+settled")] = ("beyond", setting, "stand-alone+settled")
            if setting == "domains-random-labels":
                others["the same without random labels"] = ("beyond", "domains", row)
            for over, other in others.items():
                theirs = {run.seed: run for run in table.of(*other)}
                if pairs := [(run, theirs[run.seed]) for run in table.of("beyond", setting, row) if run.seed in theirs]:
                    seeds = tuple(one.seed for one, _ in pairs)
                    weights = [one.entry("mixing/own/*") + one.entry("mixing/own_domain/*") for one, _ in pairs]
                    yield Gains(row, setting, over, seeds, fmean(weights), _gains_by_domain(pairs))


def _gains_by_domain(pairs: Sequence[tuple[Run, Run]]) -> dict[str, list[float]]:
    by_domain: dict[str, list[float]] = {}
    for one, other in pairs:
        both = list(zip(one.domains, one.accuracies(), other.accuracies(), strict=True))
        counted = len(both) - one.record["configuration"]["scrambled"]  # clients with random labels are the last ones
        for domain, a, b in both[:counted]:
            by_domain.setdefault(domain, []).append(100 * (a - b))
    return by_domain
