"""The paper run again: `ffl reproduce`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from factorized_fl.cli.common import Data, Device, console, notes, parse_numbers, parse_words
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.report.progress import ProgressObserver
from factorized_fl.reproduce.cells import RESULTS
from factorized_fl.reproduce.choices import read_choices
from factorized_fl.reproduce.claims import judge, judge_reconstructed
from factorized_fl.reproduce.collection import collect
from factorized_fl.reproduce.document import FIGURES, write_documents
from factorized_fl.reproduce.figures import draw_all
from factorized_fl.reproduce.rows import rows_of
from factorized_fl.reproduce.runner import WORK, Clock, Progress, files, run_studies
from factorized_fl.reproduce.show import claims_table, rows_records, rows_table
from factorized_fl.reproduce.studies import STUDIES, find_study

DOCS = Path("docs")


_SELDOM = 30.0  # seconds between lines of a log: a study has thousands of rounds


def _watch(config: Config) -> ProgressObserver:
    return ProgressObserver(console, f"{METHODS[config.method].card.title}, seed {config.seed}", _SELDOM)


def _tell(progress: Progress) -> None:
    states = {"cut off": "cut off in time, to be continued", "no time": "no time left"}
    line = f"{progress.name}: {states.get(progress.state, progress.state)}"
    if progress.result is not None:
        accuracies = progress.result.accuracies()
        line += f", {100 * sum(accuracies) / len(accuracies):.2f}% in {progress.result.seconds:.0f} s"
    if progress.another_configuration:
        line += ", with another configuration than today's: remove the file to run it again"
    console.print(line, highlight=False, soft_wrap=True)


def _tell_choices(results: Path) -> None:
    for entry in read_choices(results):
        where = "everywhere" if entry["presets"] is None else ", ".join(entry["presets"])
        chosen = ", ".join(f"{name} = {value:g}" for name, value in entry["options"].items())
        line = f"chosen for {', '.join(entry['methods'])}: {chosen} ({where})"
        console.print(line, highlight=False, soft_wrap=True)


def _list(what: list[str], results: Path) -> None:
    table = Table()
    for heading in ("study", "what it is", "seeds", "cells", "done"):
        table.add_column(heading, justify="right" if heading in ("cells", "done") else "left")
    for study in [find_study(name) for name in what or STUDIES]:
        paths = files([study.name], results)
        done = sum(path.exists() for path in paths)
        table.add_row(study.name, study.title, ", ".join(map(str, study.seeds)), str(len(paths)), str(done))
    console.print(table)


def _list_left(paths: list[Path], results: Path) -> None:
    left = [path for path in paths if not path.exists()]
    console.print("Left, in this order:" if left else "Nothing is left.")
    for path in left:
        console.print(f"  {path.relative_to(results).with_suffix('')}", highlight=False, soft_wrap=True)


def _show(what: list[str], results: Path, format: str, docs: Path) -> None:
    if format not in ("table", "json"):
        raise UserError(f"--format '{format}' must be table or json.")
    studies = [find_study(name).name for name in what or STUDIES]
    found = collect(results)
    rows = {name: rows_of(name, found) for name in studies}
    if format == "json":
        typer.echo(json.dumps([record for some in rows.values() for record in rows_records(some)], indent=1))
        return
    for name, some in rows.items():
        console.print(rows_table(name, some))
    if not what:
        console.print(claims_table(judge(found), judge_reconstructed(found)))
        written = [*write_documents(found, docs, docs.parent / "README.md"), *draw_all(found, docs / FIGURES)]
        for path in written:
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def reproduce(
    what: Annotated[list[str] | None, typer.Argument(metavar="WHAT...", help="Studies: see --list.")] = None,
    data: Data = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Whole numbers, separated by commas.")] = "",
    methods: Annotated[str, typer.Option("--methods", help="Only these methods, separated by commas.")] = "",
    settings: Annotated[str, typer.Option("--settings", help="Only these settings, separated by commas.")] = "",
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop between rounds, in time.", min=0)] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = RESULTS,
    work: Annotated[Path, typer.Option("--work", help="Folder for runs under way.")] = WORK,
    device: Device = "auto",
    note: Annotated[str, typer.Option("--note", help="Kept with each result: what readers have to know of it.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Print our numbers beside the paper's.")] = False,
    format: Annotated[str, typer.Option("--format", help="With --show: table or json.")] = "table",
    docs: Annotated[Path, typer.Option("--docs", help="With --show alone: where the page and figures go.")] = DOCS,
    list_studies: Annotated[
        bool, typer.Option("--list", help="List the studies; of WHAT also the cells left.")
    ] = False,
) -> None:
    """Run the paper's tables and figures again, cell by cell; what is finished is never run again.

    --show prints our numbers beside the paper's; without WHAT it also writes docs/reproduction.md and its figures.
    """
    if list_studies or show:
        if (seeds or methods or settings) and (show or not what):
            raise UserError(
                "--seeds, --methods and --settings choose what to run: give them with studies, to run or to --list, "
                "and not with --show."
            )
        if results != RESULTS and not results.is_dir():
            raise UserError(f"There is no folder '{results}' of results: give another with --results.")
    if list_studies:
        _list(what or [], results)
        if what:
            chosen = (parse_numbers("--seeds", seeds), parse_words(methods), parse_words(settings))
            _list_left(files(what, results, *chosen), results)
        return
    if show:
        _show(what or [], results, format, docs)
        return
    if not what:
        raise UserError("Say what to reproduce, for example `ffl reproduce domains`; --list shows what there is.")
    clock = Clock(None if minutes is None else 60 * minutes)
    left = 0
    try:
        for progress in run_studies(
            what,
            results,
            seeds=parse_numbers("--seeds", seeds),
            methods=parse_words(methods),
            settings=parse_words(settings),
            data=data,
            work=work,
            clock=clock,
            device=device,
            watch=_watch,
            note=note.strip().rstrip("."),
        ):
            _tell(progress)
            left += progress.state in ("cut off", "no time")
    except KeyboardInterrupt:
        clock.interrupted = True
    if "choices" in what:
        _tell_choices(results)
    if left or clock.interrupted:
        notes.print("Not everything is done: the same command goes on where this one stopped.")
    if clock.interrupted:
        raise typer.Exit(130)
