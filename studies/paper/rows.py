"""Our numbers beside the paper's: the rows that the page, a terminal and a program show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from studies.paper.cells import ALL_EPOCHS, ROUND_AFTER, Key, expand, published, published_mean, read_data
from studies.paper.draws import Predictions
from studies.paper.grid import STUDIES
from studies.paper.runs import Run, mean_of
from studies.paper.table import Table


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


def rows_of(study: str, table: Table) -> list[Row]:
    """Return all rows of a study, cells that were not run included."""
    if study == "draws":
        return [
            Row(
                study,
                f"{one.key[0].removeprefix('label-')} {one.key[1]}, predicted",
                one.key[2],
                one.paper,
                None,
                *(one.predicted or ())[:2],
            )
            for one in Predictions(table).beside_published()
        ]
    if study in read_data("tables.toml"):
        wanted = [fields for block in read_data("tables.toml")[study] for fields in expand(block)]
        return [row for fields in wanted if (row := _row(study, fields, table))]
    rows = []
    for cell in STUDIES[study].shown:
        about = cell.about if study == "departures" else (study, cell.setting, cell.method)
        setting = "domains" if about[0] == "domains" else cell.setting
        rows.append(_summary((study, setting, cell.row), table.get(cell), published_mean(*about), ""))
    return rows


def _row(study: str, fields: Mapping[str, Any], table: Table) -> Row | None:
    """Return the row that a table of fields in tables.toml describes; None if it is optional and was not run."""
    runs = table.runs(fields["cell"])
    paper = published(fields.get("paper", "-"))
    row = _summary(
        (study, fields["setting"], fields.get("name", fields["cell"].split("/")[-1])),
        runs,
        [paper] if isinstance(paper, float | int) else paper,
        fields.get("costs"),
        fields.get("quantity", "percent"),
        ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)],
        fields.get("domain"),
    )
    return None if row.ours is None and fields.get("optional") else replace(row, unit=fields.get("unit", "%"))


def _summary(
    key: Key,
    runs: Sequence[Run],
    paper: Sequence[float] | None,
    costs: str | None,
    quantity: str = "percent",
    after: int | None = None,
    domain: str | None = None,
) -> Row:
    ours = mean_of(runs, quantity, after, domain)
    printed, printed_spread = (*(paper or ()), None, None)[:2]
    row = Row(*key, printed, printed_spread, seeds=tuple(run.seed for run in runs))
    if ours:
        row = replace(row, ours=ours.value, spread=ours.spread if quantity == "percent" else None)
    if costs is None:
        return row
    sent, formula = mean_of(runs, "gigabytes"), mean_of(runs, "formula_a")
    return replace(
        row,
        bytes=sent.value * 1e9 if sent else None,
        formula_gb=formula.value if formula else None,
        paper_gb=published(costs),
    )


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows for a program; what was not run is None."""
    return [
        {name: round(item, 6) if isinstance(item, float) else item for name, item in asdict(row).items()}
        | {"seeds": list(row.seeds)}
        for row in rows
    ]
