"""Commands that show: the page of a run, written or live."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from factorized_fl import api
from factorized_fl.cli.common import console, notes
from factorized_fl.report.figures import write_figures
from factorized_fl.report.watch import serve, watching

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, folders of them, or a kit.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve the page on this machine while it runs.")]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; default: inside the run.")] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="A Stand-Alone run of the same clients.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also save figures as SVG and PNG here.")] = None,
) -> None:
    """Write the page: did federation help, and who learned from whom?"""
    console.print(f"Report: {api.report(runs, out, baseline)}", highlight=False, soft_wrap=True)
    if figures:
        for path in write_figures(runs, figures, baseline):
            console.print(f"Figure: {path}", highlight=False, soft_wrap=True)


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory, or a folder of them.")],
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve the page of a run that goes on; it follows the run by itself. Ends with Ctrl-C."""
    with serve(run, port) as server:
        console.print(f"Watching {run} at {server.url} (end with Ctrl-C)", highlight=False, soft_wrap=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("Ended; the run, if any, goes on.")


@contextmanager
def page_while_running(path: Path, wanted: bool) -> Iterator[None]:
    """What --watch does."""
    if not wanted:
        yield
        return
    with watching(path) as url:
        console.print(f"Watch it at {url}", highlight=False, soft_wrap=True)
        yield


def end_with_page(path: Path) -> None:
    """Write the page of what has just ended. The results are safe by now: no trouble with a page undoes them."""
    try:
        page = api.report(path)
    except Exception as error:
        notes.print(f"Note: the report could not be written ({error}).", highlight=False, soft_wrap=True)
    else:
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)
