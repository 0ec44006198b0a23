"""One HTML file of run directories that opens anywhere, without a network.

The charts are our own JavaScript over SVG (assets/) rather than a plotting library: the package writes a page after
every run and should not depend on one, plotly's bundle alone would add 1 to 4.5 MB to each page, and heat maps with a
slider, a graph and a sortable table need little of it.
"""

from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.report.collect import Document, collect
from factorized_fl.report.single_file import page_asset, single_file

PAGE = "report.html"
_SCRIPTS = (
    *("tools.js", "charts.js", "maps.js", "spreads.js", "parts.js"),
    *("verdict.js", "scores.js", "exchange.js", "inside.js", "comparison.js", "main.js"),
)


def write_report(paths: Sequence[Path], out: Path | None = None, baseline: Path | None = None) -> Path:
    """Write one page for run directories, or folders of them, to `out` or else to report.html, and return its path."""
    page = render_page(collect(paths, baseline))
    target = out or (paths[0] / PAGE if len(paths) == 1 else Path(PAGE))
    if target.is_dir():
        target = target / PAGE
    with plain_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target


def render_page(document: Document) -> str:
    """Return the page as HTML."""
    comparison = document["comparison"]
    headlines = [comparison["headline"]] if comparison else [run["headline"] for run in document["runs"]]
    style, scripts = page_asset("page.css"), [page_asset(name) for name in _SCRIPTS]
    return single_file(document["title"], " ".join(headlines), document, style, scripts, live=document["live"])
