"""The pages about the paper and the README's lines, from the results alone: the same results give the same bytes."""

import re
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from factorized_fl.core.files import write_atomically
from factorized_fl.report.tables import format_bytes
from studies.paper import findings, short
from studies.paper.cells import ALL_EPOCHS, HERE, as_key, published_mean, title
from studies.paper.claims import SUPPOSED, judge, judge_reconstructed
from studies.paper.draws import Predictions
from studies.paper.figures import draw_all, ready_figures
from studies.paper.findings import rows_of
from studies.paper.grid import STUDIES, reconstruction
from studies.paper.table import Table, mean_of

BEGIN, END = "<!-- reproduction: written by `python -m studies.paper --show` -->", "<!-- end of reproduction -->"


# The pages below docs/, the summary first, and their templates.
PAGES = {
    "reproduction.md": "reproduction.md.j2",
    "paper/claims.md": "claims.md.j2",
    "paper/tables.md": "tables.md.j2",
    "paper/differences.md": "differences.md.j2",
    "paper/deviations.md": "deviations.md.j2",
    "paper/draws.md": "draws.md.j2",
    "paper/choices.md": "choices_made.md.j2",
    "paper/checks.md": "checks.md.j2",
    "paper/not-run.md": "not_run.md.j2",
}


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "apply": lambda value, function: function(value),
        "entry_of": lambda run, path: run.entry(path),
        "family": lambda row: title(row.method) + (", single client" if row.study == "architectures" else ""),
        "largest_first": lambda group: (-len(group[1]), group[0], group),
        "mean": fmean,
        "title_of": title,
    }
    environment.tests |= {"near": lambda row: row.distance <= findings.CLOSE, "exists": Path.exists}
    environment.tests["all_epochs"] = lambda setting: setting.endswith(ALL_EPOCHS)
    return environment


def render(template: str, **shown: Any) -> str:
    """Return the text of a template, with paragraphs one empty line apart."""
    return re.sub(r"\n{3,}", "\n\n", _templates().get_template(template).render(shown)).strip() + "\n"


def contents(table: Table) -> dict[str, Any]:
    """Return all that the templates may show of the results."""
    comparable, predictions = findings.comparable_rows(table), Predictions(table)
    rows = {name: rows_of(name, table) for name in STUDIES}
    return {
        "table": table,
        "studies": STUDIES,
        "rows": rows,
        "comparable": comparable,
        "far": findings.far_from_paper(table),
        "findings": findings,
        "short": short,
        "left": short.left,
        "stand_ins": list(reconstruction().values()),
        "figures": ready_figures(table),
        "judged": judge(table),
        "rejudged": judge_reconstructed(table),
        "supposed": judge(table, SUPPOSED),
        "predictions": predictions,
        "beside": predictions.beside_published(),
        "cell": table.runs,
        "mean": mean_of,
        "paper": lambda name: published_mean(*as_key(name)),
        "compare": lambda one, other: table.compare(as_key(one), as_key(other)),
        "plain": lambda text: text.replace("*", "\\*"),  # stars that Markdown leaves alone
        **{call.__name__: call for call in (title, format_bytes, fmean, median, zip)},
    }


def pages(table: Table) -> dict[str, str]:
    """Return the text of every page by its path below docs/."""
    shown = contents(table)
    return {name: render(template, **shown) for name, template in PAGES.items()}


def with_short_text(readme: str, table: Table) -> str:
    """Return the README with its lines about the paper renewed between the markers; unchanged if it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        return readme
    return f"{before}{BEGIN}\n{render('readme.md.j2', **contents(table))}{END}{after}"


def write_documents(table: Table, docs: Path) -> list[Path]:
    """Write the pages, their figures and the lines of the README beside the folder; return what was written."""
    written, readme = [], docs.parent / "README.md"
    for name, text in pages(table).items():
        (docs / name).parent.mkdir(exist_ok=True)
        write_atomically(docs / name, text.encode())
        written.append(docs / name)
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if (renewed := with_short_text(text, table)) != text:
        write_atomically(readme, renewed.encode())
        written.append(readme)
    return [*written, *draw_all(table, docs / "figures")]
