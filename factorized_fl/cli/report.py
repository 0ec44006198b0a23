"""Commands that show results: the page of a run, written to a file or served during the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from factorized_fl.cli.common import console, notes
from factorized_fl.results.schema import FEDERATION

if TYPE_CHECKING:
    from factorized_fl.core.loopback import LoopbackServer

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, folders of them, or a kit.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve the page on this machine during the run.")]


def report_command(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; default: inside the run.")] = None,
    baseline: Annotated[Path | None, typer.Option("--baseline", help="A Stand-Alone run of the same clients.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also save figures as SVG and PNG here.")] = None,
) -> None:
    """Write the page of runs: whether federation helped, and which clients learned from each other."""
    from factorized_fl import api

    console.print(f"Report: {api.report(runs, out, baseline)}", highlight=False, soft_wrap=True)
    if figures:
        from factorized_fl.report.figures import write_figures

        for path in write_figures(runs, figures, baseline):
            console.print(f"Figure: {path}", highlight=False, soft_wrap=True)


def watch_command(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR|KIT", help="A run directory, a folder of them, or a kit.")],
    port: Annotated[int, typer.Option("--port", help="Port to serve at; 0: any free port.", min=0, max=65535)] = 0,
) -> None:
    """Serve the page of a run in progress, or of a party of a federation; it updates itself. Stop with Ctrl-C."""
    with _server(run, port) as server:
        console.print(f"Watching {run} at {server.url} (stop with Ctrl-C)", highlight=False, soft_wrap=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("Stopped watching; a run in progress continues.")


def _server(path: Path, port: int) -> "LoopbackServer":
    """The server of a run's page, or of a party's."""
    if (path / FEDERATION).is_file():
        from factorized_fl.silo.agreement import read_kit
        from factorized_fl.silo.watch import party_server

        return party_server(read_kit(path), port)
    from factorized_fl.report.watch import page_server

    return page_server(path, port)


@contextmanager
def page_while_running(path: Path, wanted: bool, to: Console = console) -> Iterator[None]:
    """Serve the page of the run at `path` inside this context, if it is wanted; `to` prints the address."""
    if not wanted:
        yield
        return
    from factorized_fl.report.watch import watching

    with watching(path) as url:
        to.print(f"Watch it at {url}", highlight=False, soft_wrap=True)
        yield


def end_with_page(path: Path, to: Console = console) -> Path | None:
    """Write the page of a finished run; returns its path. The results are on disk, so an error here becomes a note."""
    from factorized_fl import api

    try:
        page = api.report(path)
    except Exception as error:
        notes.print(f"Note: the report could not be written ({error}).", highlight=False, soft_wrap=True)
        return None
    to.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return page
