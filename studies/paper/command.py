"""The command `python -m studies.paper`: list, run, resume and show the reproduction."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from factorized_fl.cli import main as run_application
from factorized_fl.cli.common import Data, Device, console, notes, parse_numbers, parse_words
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.report.progress import ProgressObserver
from studies.paper.cells import RESULTS, ROOT
from studies.paper.findings import as_records, rows_of
from studies.paper.grid import STUDIES, find_study
from studies.paper.jobs import WORK, files, run_studies
from studies.paper.page import contents, render, write_documents
from studies.paper.table import Run, collect, read_choices
from studies.runner import Clock

SECONDS_BETWEEN_LINES = 30.0  # of a log: a study has thousands of rounds
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command; user errors become one sentence and exit code 2."""
    run_application(app)


def _say(text: str) -> None:
    console.print(text.rstrip(), highlight=False, soft_wrap=True)


def _watch(config: Config) -> ProgressObserver:
    return ProgressObserver(console, f"{METHODS[config.method].card.title}, seed {config.seed}", SECONDS_BETWEEN_LINES)


def _list(studies: list[str], results: Path, selection: dict[str, Any]) -> None:
    listed = [(study, files([study.name], results)) for study in map(find_study, studies or STUDIES)]
    paths = [path for path in files(studies, results, **selection) if not path.exists()]
    left = [path.relative_to(results).with_suffix("") for path in paths] if studies else None
    _say(render("list.txt.j2", listed=listed, left=left))


def _show(studies: list[str], results: Path, output: str) -> None:
    if output not in ("table", "json"):
        raise UserError(f"--format '{output}' must be table or json.")
    shown, table = [find_study(name).name for name in studies or STUDIES], collect(results)
    if output == "json":
        typer.echo(json.dumps([record for name in shown for record in as_records(rows_of(name, table))], indent=1))
        return
    _say(render("show.txt.j2", shown=shown, **contents(table)))
    if not studies and results.resolve() == RESULTS:
        for path in write_documents(table, ROOT / "docs"):
            _say(f"wrote {path}")


@app.command()
def reproduce(
    studies: Annotated[list[str] | None, typer.Argument(metavar="STUDY...", help="See --list.")] = None,
    data: Data = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Whole numbers, separated by commas.")] = "",
    methods: Annotated[str, typer.Option("--methods", help="Only these methods, separated by commas.")] = "",
    settings: Annotated[str, typer.Option("--settings", help="Only these settings, separated by commas.")] = "",
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop between rounds, in time.", min=0)] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = RESULTS,
    work: Annotated[Path, typer.Option("--work", help="Folder of unfinished runs.")] = WORK,
    device: Device = "auto",
    note: Annotated[str, typer.Option("--note", help="A note for readers, kept with each result.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Print our numbers beside the paper's.")] = False,
    output: Annotated[str, typer.Option("--format", help="With --show: table or json.")] = "table",
    list_studies: Annotated[bool, typer.Option("--list", help="List the studies; of STUDY also cells left.")] = False,
) -> None:
    """Run the paper's tables and figures again, cell by cell; what is finished is never run again.

    --show prints our numbers beside the paper's. Without STUDY and --results it also writes docs/reproduction.md,
    docs/paper/, their figures and the README's lines, always of the source tree that this command belongs to.
    """
    studies = studies or []
    if list_studies or show:
        if (seeds or methods or settings) and (show or not studies):
            raise UserError(
                "--seeds, --methods and --settings choose what to run: give them with studies, to run or to --list, "
                "and not with --show."
            )
        if results != RESULTS and not results.is_dir():
            raise UserError(f"There is no folder '{results}' of results: give another with --results.")
    narrowed = {"methods": parse_words(methods), "settings": parse_words(settings)}
    selection: dict[str, Any] = {"seeds": parse_numbers("--seeds", seeds), **narrowed}
    if list_studies:
        return _list(studies, results, selection)
    if show:
        return _show(studies, results, output)
    if not studies:
        raise UserError("Name a study, for example `python -m studies.paper domains`; --list shows all studies.")
    clock, left = Clock(None if minutes is None else 60 * minutes), 0
    options: dict[str, Any] = {
        "data": data,
        "work": work,
        "device": device,
        "watch": _watch,
        "note": note.strip().rstrip("."),
    }
    try:
        for progress in run_studies(studies, results, clock=clock, **selection, **options):
            run = Run(progress.record) if progress.record else None
            _say(render("progress.txt.j2", progress=progress, run=run))
            left += progress.state in ("cut off", "no time")
    except KeyboardInterrupt:
        clock.interrupted = True
    if "choices" in studies:
        _say(render("choices.txt.j2", choices=read_choices(results)))
    if left or clock.interrupted:
        notes.print("Not everything is done: the same command continues where this one stopped.")
    if clock.interrupted:
        raise typer.Exit(130)
