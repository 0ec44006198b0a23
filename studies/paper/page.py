"""docs/reproduction.md and the README's table, from the results alone: the same results give the same bytes."""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from factorized_fl.core.files import write_atomically
from factorized_fl.report.tables import size
from studies.paper import deviations, summaries
from studies.paper.cells import HERE, title, variant_title
from studies.paper.claims import SUPPOSED, judge, judge_reconstructed
from studies.paper.figures import draw_all, ready_figures
from studies.paper.predictions import Predictions, beside_published
from studies.paper.published import published_mean
from studies.paper.rows import ALL_EPOCHS, FEW_EPOCHS, Row, all_rows
from studies.paper.runs import formula_gigabytes, mean_accuracy, total_bytes
from studies.paper.table import Table

BEGIN, END = "<!-- reproduction: written by `python -m studies.paper --show` -->", "<!-- end of reproduction -->"


def digits(unit: str) -> int:
    """Return how many decimal places numbers of a unit have."""
    return 2 if unit == "%" else 3


def value(number: float | None, spread: float | None, unit: str) -> str:
    """Return a number with its spread, as far as there are such."""
    if number is None:
        return ""
    return f"{number:.{digits(unit)}f}" + ("" if spread is None else f" ± {spread:.{digits(unit)}f}")


def entry(row: Row, paper: bool = True) -> str:
    """Return "paper / ours (difference)"."""
    ours = "not run" if row.ours is None else value(row.ours, row.spread, row.unit)
    if row.paper is None or not paper:
        return ours
    places = digits(row.unit)
    gap = "" if row.difference is None else f" ({row.difference:+.{places}f})"
    return f"{row.paper:.{places}f} / {ours}{gap}"


def grid(headings: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    rows = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}", *rows])


def pivot(rows: Sequence[Row], name: Callable[[str], str] = title, by_method: bool = False) -> str:
    """Return a table with methods as columns and settings as lines, or the other way round."""
    entries = {(row.setting, row.method): entry(row) for row in rows}
    settings, methods = (list(dict.fromkeys(keys)) for keys in zip(*entries, strict=True))
    if by_method:
        return grid(["", *settings], ([name(m), *(entries.get((s, m), "") for s in settings)] for m in methods))
    return grid(["", *map(name, methods)], ([s, *(entries.get((s, m), "") for m in methods)] for s in settings))


def with_costs(rows: Sequence[Row], settings: Sequence[str], costs_of: str) -> str:
    """Return a table with methods as lines and settings as columns, and the costs of one setting."""
    places = {(row.method, row.setting): row for row in rows}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        row = places[method, costs_of]
        sent = None if row.bytes is None else row.bytes / 1e9
        costs = [(row.paper_gb, "g"), (row.formula_gb, ".2f"), (sent, ".2f")]
        shown = ["-" if number is None else format(number, form) for number, form in costs]
        lines.append([title(method), *(entry(places[method, setting]) for setting in settings), *shown])
    return grid(("method", *settings, "paper, GB", "formula, GB", "serialised, GB"), lines)


def plain(text: str) -> str:
    """Return text whose stars Markdown leaves alone."""
    return text.replace("*", "\\*")


def agreement(rows: dict[str, list[Row]], comparable: Sequence[Row]) -> dict[str, Any]:
    """Return how many of the published means were run, and how many of them are near."""
    rows_by_place: dict[str, list[Row]] = {}
    run = [row for row in comparable if row.difference is not None]
    for row in run:
        single = row.study == "architectures"
        rows_by_place.setdefault(f"of single clients after {ALL_EPOCHS}" if single else "of Table 1", []).append(row)
    early = [row for row in rows["architectures"] if row.setting.endswith(FEW_EPOCHS) and row.difference is not None]
    if early:
        rows_by_place[f"of them after the {FEW_EPOCHS} that the paper states"] = early
    published = [row for row in comparable if row.paper is not None]
    return {
        "run": len(run),
        "published": len(published),
        "once": sum(len(row.seeds) == 1 for row in published),
        "missing": Counter(row.study for row in published if row.ours is None),
        "near": [(sum(map(deviations.near, some)), len(some), place) for place, some in rows_by_place.items()],
    }


def _environment(table: Table) -> Environment:
    """Return the templates' environment with all that they may show of the results."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    rows, comparable = all_rows(table), deviations.comparable_rows(table)
    predictions = Predictions(table)

    def cell(key: str) -> Any:
        return table.of(*key.split("/"))

    environment.filters["title_of"] = title
    environment.tests["near"] = deviations.near
    environment.globals |= {
        "table": table,
        "rows": rows,
        "comparable": comparable,
        "far": deviations.far_from_paper(table),
        "deviations": deviations,
        "summaries": summaries,
        "figures": ready_figures(table),
        "judged": judge(table),
        "rejudged": judge_reconstructed(table),
        "supposed": judge(table, SUPPOSED),
        "agreement": agreement(rows, comparable),
        "predictions": predictions,
        "beside": beside_published(predictions),
        "cell": cell,
        "mean": mean_accuracy,
        "paper": lambda key: published_mean(*key.split("/")),
        "compare": lambda one, other: table.compare(tuple(one.split("/")), tuple(other.split("/"))),
        "fmean": statistics.fmean,
        "median": statistics.median,
        **{function.__name__: function for function in (entry, grid, pivot, with_costs, plain, title, variant_title)},
        **{function.__name__: function for function in (size, total_bytes, formula_gigabytes, zip, len, sum, abs, map)},
    }
    return environment


def page(table: Table) -> str:
    """Return the whole page."""
    return _render(table, "reproduction.md.j2")


def _render(table: Table, name: str) -> str:
    """Return a template's text, with paragraphs one empty line apart."""
    text = _environment(table).get_template(name).render()
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def with_short_table(readme: str, table: Table) -> str:
    """Return the README with its table renewed between the markers; unchanged if it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        return readme
    return f"{before}{BEGIN}\n{_render(table, 'readme.md.j2')}{END}{after}"


def write_documents(table: Table, docs: Path) -> list[Path]:
    """Write the page, its figures and the table of the README beside the folder; return what was written."""
    write_atomically(docs / "reproduction.md", page(table).encode())
    written, readme = [docs / "reproduction.md"], docs.parent / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if (renewed := with_short_table(text, table)) != text:
        write_atomically(readme, renewed.encode())
        written.append(readme)
    return [*written, *draw_all(table, docs / "figures")]
