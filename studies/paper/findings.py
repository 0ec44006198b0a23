"""Our numbers beside the paper's: the rows that are shown, where they are far apart, and what brings them near."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from studies.paper.cells import ALL_EPOCHS, ROUND_AFTER, Cell, expand, published, published_mean, read_data
from studies.paper.draws import Predictions
from studies.paper.grid import STUDIES
from studies.paper.table import Run, Table, collect, mean_of


@dataclass(frozen=True)
class Row:
    """One number: what the paper printed and what we found, if either."""

    study: str
    setting: str
    method: str
    paper: float | None = None
    paper_spread: float | None = None
    ours: float | None = None
    spread: float | None = None  # between seeds
    seeds: tuple[int, ...] = ()
    bytes: float | None = None  # of a whole run, as serialised, both ways
    formula_gb: float | None = None  # by the paper's formula, without the first download
    paper_gb: float | None = None
    unit: str = "%"

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    @property
    def distance(self) -> float:
        """By how many points it differs from the paper; 0 if one of the two is missing."""
        return abs(self.difference or 0)


def rows_of(study: str, table: Table) -> list[Row]:
    """Return all rows of a study, cells that were not run included."""
    if study == "draws":
        drawn = Predictions(table).beside_published()
        settings = [f"{one.key[0].removeprefix('label-')} {one.key[1]}, predicted" for one in drawn]
        predicted = [(one.key[2], one.paper, None, *(one.predicted or ())[:2]) for one in drawn]
        return [Row(study, setting, *numbers) for setting, numbers in zip(settings, predicted, strict=True)]
    if study in read_data("tables.toml"):
        wanted = [fields for block in read_data("tables.toml")[study] for fields in expand(block)]
        rows = [_row(study, fields, table, published(fields.get("paper", "-"))) for fields in wanted]
        return [
            row for row, fields in zip(rows, wanted, strict=True) if row.ours is not None or "optional" not in fields
        ]
    rows = []
    for cell in STUDIES[study].shown:
        about = cell.about if study == "deviations" else (study, cell.setting, cell.method)
        setting = "domains" if about[0] == "domains" else cell.setting
        rows.append(_row(study, {"setting": setting, "cell": cell, "costs": ""}, table, published_mean(*about)))
    return rows


def _row(study: str, fields: Mapping[str, Any], table: Table, paper: Sequence[float] | float | None) -> Row:
    """Return the row that a table of fields, as in tables.toml, describes."""
    runs, quantity, unit = table.runs(fields["cell"]), fields.get("quantity", "percent"), fields.get("unit", "%")
    cell = fields["cell"]
    name = fields.get("name") or (cell.row if isinstance(cell, Cell) else cell.split("/")[2])
    printed, printed_spread = (*(paper if isinstance(paper, Sequence) else (paper,)), None)[:2]
    seeds = tuple(run.seed for run in runs)
    row = Row(study, fields["setting"], name, printed, printed_spread, seeds=seeds, unit=unit)
    if ours := mean_of(runs, quantity, ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)], fields.get("domain")):
        row = replace(row, ours=ours.value, spread=ours.spread if quantity == "percent" else None)
    if "costs" not in fields:
        return row
    sent, formula = (mean.value if (mean := mean_of(runs, q)) else None for q in ("gigabytes", "formula_a"))
    paper_gb = published(fields["costs"])
    return replace(row, bytes=None if sent is None else sent * 1e9, formula_gb=formula, paper_gb=paper_gb)


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows for a program; what was not run is None."""
    return [
        {name: round(item, 6) if isinstance(item, float) else item for name, item in asdict(row).items()}
        | {"seeds": list(row.seeds)}
        for row in rows
    ]


CLOSE = 2.5  # points within which a number counts as reproduced


def comparable_rows(table: Table) -> list[Row]:
    """Return the rows whose published number is compared: no single domains, single clients after all epochs."""
    rows = [*rows_of("label-cifar10", table), *rows_of("label-svhn", table)]
    rows += [replace(row, setting="domains") for row in rows_of("domains", table) if row.setting == "average"]
    ending = f", {ALL_EPOCHS}"
    single = [row for row in rows_of("architectures", table) if row.setting.endswith(ending)]
    return rows + [replace(row, setting=row.setting.removesuffix(ending)) for row in single]


def deviation_rows(table: Table) -> list[tuple[Cell, Row]]:
    """Return every deviation with its row."""
    return list(zip(STUDIES["deviations"].shown, rows_of("deviations", table), strict=True))


class Far(NamedTuple):
    """A mean far from the paper's, and its runs with something changed."""

    row: Row
    tried: Sequence[Row]
    drawn: Sequence[Row]  # with other draws of the partition, which explain nothing by themselves
    has_options: bool  # whether there is anything to change

    @property
    def near(self) -> list[Row]:
        """The changed runs that agree with the paper."""
        return [row for row in self.tried if row.distance <= CLOSE]

    @property
    def nearest(self) -> Row:
        """The run that is closest to the paper, possibly the row itself."""
        return min((*self.tried, self.row), key=lambda row: row.distance)


def far_from_paper(table: Table) -> list[Far]:
    """Return the means that differ by more than CLOSE points."""
    far, deviations = [], deviation_rows(table)
    for row in (row for row in comparable_rows(table) if row.distance > CLOSE):
        about = [(cell, other) for cell, other in deviations if cell.about == (row.study, row.setting, row.method)]
        ran = [("partition_seed" in cell.settings, other) for cell, other in about if other.difference is not None]
        tried, drawn = ([other for is_drawn, other in ran if is_drawn is wanted] for wanted in (False, True))
        far.append(Far(row, tried, drawn, bool(about)))
    return far


def unexplained_first(cells: list[Cell], results: Path) -> list[Cell]:
    """Return the cells with the deviations last whose number is near, was brought near, or is unknown.

    Among the others, those with other draws come last, because they explain nothing by themselves.
    """
    if all(cell.study != "deviations" for cell in cells):
        return cells
    far = {(one.row.study, one.row.setting, one.row.method) for one in far_from_paper(collect(results)) if not one.near}
    return sorted(cells, key=lambda c: (c.study == "deviations" and c.about not in far, "partition_seed" in c.settings))


def other_draws(table: Table) -> list[tuple[str, str, list[Row]]]:
    """Return per setting and method the row as in the tables and those with other draws, where any was run."""
    rows = {cell.key: row for cell, row in deviation_rows(table)}
    first = {(row.study, row.setting, row.method): row for row in comparable_rows(table)} | rows
    drawn: dict[tuple[str, str], list[Row]] = {}
    for cell in (cell for cell in STUDIES["deviations"].own if "partition_seed" in cell.settings):
        name = cell.row.partition("+draw=")[0]
        as_shown = first[(cell.study, cell.setting, name) if "+" in name else cell.about]
        drawn.setdefault((cell.setting, name), [as_shown]).append(rows[cell.key])
    return [(*key, some) for key, some in drawn.items() if any(row.ours is not None for row in some[1:])]


class Gains(NamedTuple):
    """Points that clients of our own method gained over another cell, by domain."""

    row: str
    setting: str
    over: str
    pairs: list[tuple[Run, Run]]
    points: dict[str, list[float]]


def gains(table: Table) -> Iterator[Gains]:
    """Yield the gains that tables.toml names and whose cells were both run."""
    for fields in (fields for block in read_data("tables.toml")["gains"] for fields in expand(block)):
        theirs = {run.seed: run for run in table.runs(fields["other"])}
        if pairs := [(run, theirs[run.seed]) for run in table.runs(fields["cell"]) if run.seed in theirs]:
            points: dict[str, list[float]] = {}
            for one, other in pairs:
                both = list(zip(one.domains, one.accuracies(), other.accuracies(), strict=True))
                # Clients with random labels are the last ones and are not counted.
                for domain, a, b in both[: len(both) - one.record["configuration"]["scrambled"]]:
                    points.setdefault(domain, []).append(100 * (a - b))
            yield Gains(fields["row"], fields["setting"], fields["over"], pairs, points)
