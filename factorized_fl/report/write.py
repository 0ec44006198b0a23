"""Writing the page to a file."""

from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.report.collect import collect
from factorized_fl.report.page import render_page

PAGE = "report.html"


def write_report(paths: Sequence[Path], out: Path | None = None, baseline: Path | None = None) -> Path:
    """Write one page for run directories, or folders of them, and return its path.

    Without `out` it is report.html, inside the path if a single one is given.
    """
    page = render_page(collect(paths, baseline))
    target = out or (paths[0] / PAGE if len(paths) == 1 else Path(PAGE))
    if target.is_dir():
        target = target / PAGE
    with plain_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target
