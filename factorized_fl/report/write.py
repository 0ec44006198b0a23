"""Writing the page where a person finds it."""

from collections.abc import Sequence
from pathlib import Path

from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.report.collect import collect
from factorized_fl.report.page import render_page

PAGE = "report.html"


def write_report(paths: Sequence[Path], out: Path | None = None, baseline: Path | None = None) -> Path:
    """Write one page for these run directories, or folders of them; by default inside a single one given."""
    page = render_page(collect(paths, baseline))
    target = out or (paths[0] / PAGE if len(paths) == 1 else Path(PAGE))
    if target.is_dir():
        target = target / PAGE
    with plain_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target
