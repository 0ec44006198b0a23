"""Our numbers beside the paper's, on a terminal and for a program."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from factorized_fl.report.tables import size
from factorized_fl.reproduce.claims import Judged
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.rows import Row
from factorized_fl.reproduce.studies import STUDIES


def rows_table(what: str, rows: Sequence[Row]) -> Table:
    """The rows of one study; cells that were not run say so."""
    table = Table(title=f"{what}: {STUDIES[what].title}", title_justify="left")
    for heading in ("setting", "method", "paper", "ours", "difference", "seeds", "bytes", "formula", "paper's cost"):
        table.add_column(heading, justify="left" if heading in ("setting", "method") else "right")
    for row in rows:
        table.add_row(
            row.setting,
            title(row.method),
            value(row.paper, row.paper_spread, row.unit),
            value(row.ours, row.spread, row.unit) if row.ours is not None else "not run",
            "" if row.difference is None else f"{row.difference:+.{_digits(row.unit)}f}",
            ", ".join(map(str, row.seeds)),
            "" if row.bytes is None else size(row.bytes),
            "" if row.formula_gb is None else f"{row.formula_gb:.2f} GB",
            "" if row.paper_gb is None else f"{row.paper_gb:g} GB",
        )
    return table


def value(number: float | None, spread: float | None, unit: str) -> str:
    """A number with its spread, as far as there are such."""
    if number is None:
        return ""
    digits = _digits(unit)
    return f"{number:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _digits(unit: str) -> int:
    return 2 if unit == "%" else 3


def rows_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same rows for a program; what was not run is null."""
    return [
        {name: round(item, 6) if isinstance(item, float) else item for name, item in asdict(row).items()}
        | {"seeds": list(row.seeds)}
        for row in rows
    ]


def claims_table(judged: Sequence[Judged], rejudged: Sequence[Judged]) -> Table:
    """The ledger of claims: as printed and, where that may decide otherwise, by the reconstructed runs."""
    table = Table(title="The paper's claims", title_justify="left")
    for heading in ("claim", "verdict", "checks", "as reconstructed", "checks"):
        table.add_column(heading)
    again = {entry.claim.name: (entry.words, entry.count) for entry in rejudged}
    for entry in judged:
        table.add_row(entry.claim.statement, entry.words, entry.count, *again.get(entry.claim.name, ()))
    return table
