"""The command `python -m studies.paper`: list, run, resume and show the reproduction."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Printed

from factorized_fl.cli import main as run_application
from factorized_fl.cli.common import Data, Device, console, notes, parse_numbers, parse_words
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.report.progress import ProgressObserver
from factorized_fl.report.tables import size
from studies.paper.cells import RESULTS, ROOT, title
from studies.paper.choices import read_choices
from studies.paper.claims import judge, judge_reconstructed
from studies.paper.grid import STUDIES, find_study
from studies.paper.jobs import WORK, files, run_studies
from studies.paper.page import digits, value, write_documents
from studies.paper.rows import Row, as_records, rows_of
from studies.paper.runs import Run
from studies.paper.table import Table, collect
from studies.runner import Clock, Progress

SECONDS_BETWEEN_LINES = 30.0  # of a log: a study has thousands of rounds
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command; user errors become one sentence and exit code 2."""
    run_application(app)


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def _watch(config: Config) -> ProgressObserver:
    return ProgressObserver(console, f"{METHODS[config.method].title}, seed {config.seed}", SECONDS_BETWEEN_LINES)


def _say_progress(progress: Progress) -> None:
    states = {"cut off": "stopped in time, to be continued", "no time": "no time left"}
    line = f"{progress.name}: {states.get(progress.state, progress.state)}"
    if progress.record is not None:
        run = Run(progress.record)
        line += f", {run.percent():.2f}% in {run.seconds:.0f} s"
    if progress.other_configuration:
        line += ", with another configuration than today's: remove the file to run it again"
    _say(line)


def _say_choices(results: Path) -> None:
    for made in read_choices(results):
        where = "everywhere" if made["presets"] is None else ", ".join(made["presets"])
        chosen = ", ".join(f"{name} = {number:g}" for name, number in made["options"].items())
        _say(f"chosen for {', '.join(made['methods'])}: {chosen} ({where})")


def _print(title: str, headings: str, lines: list[list[str]], right: str = "") -> None:
    table = Printed(title=title, title_justify="left")
    for heading in headings.split(", "):
        table.add_column(heading, justify="right" if heading in right.split(", ") else "left")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _list(studies: list[str], results: Path) -> None:
    lines = []
    for study in map(find_study, studies or STUDIES):
        paths = files([study.name], results)
        done = sum(path.exists() for path in paths)
        lines.append([study.name, study.title, ", ".join(map(str, study.seeds)), str(len(paths)), str(done)])
    _print("", "study, what it is, seeds, cells, done", lines, "cells, done")


def _list_left(paths: list[Path], results: Path) -> None:
    left = [path for path in paths if not path.exists()]
    console.print("Left, in this order:" if left else "Nothing is left.")
    for path in left:
        _say(f"  {path.relative_to(results).with_suffix('')}")


def _line(row: Row) -> list[str]:
    return [
        row.setting,
        title(row.method),
        value(row.paper, row.paper_spread, row.unit),
        value(row.ours, row.spread, row.unit) if row.ours is not None else "not run",
        "" if row.difference is None else f"{row.difference:+.{digits(row.unit)}f}",
        ", ".join(map(str, row.seeds)),
        "" if row.bytes is None else size(row.bytes),
        "" if row.formula_gb is None else f"{row.formula_gb:.2f} GB",
        "" if row.paper_gb is None else f"{row.paper_gb:g} GB",
    ]


def _show(studies: list[str], table: Table, output: str) -> None:
    rows = {find_study(name).name: rows_of(name, table) for name in studies or STUDIES}
    if output == "json":
        typer.echo(json.dumps([record for some in rows.values() for record in as_records(some)], indent=1))
        return
    numbers = "paper, ours, difference, seeds, bytes, formula, paper's cost"
    for name, some in rows.items():
        _print(f"{name}: {STUDIES[name].title}", f"setting, method, {numbers}", list(map(_line, some)), numbers)
    if not studies:
        again = {one.claim.name: [one.words, one.count] for one in judge_reconstructed(table)}
        lines = [[one.claim.statement, one.words, one.count, *again.get(one.claim.name, ())] for one in judge(table)]
        _print("The paper's claims", "claim, verdict, checks, as reconstructed, checks", lines)


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
    note: Annotated[str, typer.Option("--note", help="Kept with each result: what readers should know of it.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Print our numbers beside the paper's.")] = False,
    output: Annotated[str, typer.Option("--format", help="With --show: table or json.")] = "table",
    docs: Annotated[Path | None, typer.Option("--docs", help="With --show alone: folder of the page.")] = None,
    list_studies: Annotated[bool, typer.Option("--list", help="List the studies; of STUDY also cells left.")] = False,
) -> None:
    """Run the paper's tables and figures again, cell by cell; what is finished is never run again.

    --show prints our numbers beside the paper's. Without STUDY it also writes docs/reproduction.md, its figures and the
    README's table of the source tree that this command belongs to, whatever the current folder; with --results of
    another folder it writes them only where --docs says.
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
    selection = {
        "seeds": parse_numbers("--seeds", seeds),
        "methods": parse_words(methods),
        "settings": parse_words(settings),
    }
    if list_studies:
        _list(studies, results)
        if studies:
            _list_left(files(studies, results, **selection), results)
        return
    if show:
        if output not in ("table", "json"):
            raise UserError(f"--format '{output}' must be table or json.")
        docs = docs or (ROOT / "docs" if results.resolve() == RESULTS else None)
        if docs and not docs.is_dir():
            raise UserError(f"There is no folder '{docs}' to write the page to: give another with --docs.")
        table = collect(results)
        _show(studies, table, output)
        if docs and not studies and output == "table":
            for path in write_documents(table, docs):
                _say(f"wrote {path}")
        return
    if not studies:
        raise UserError("Name a study, for example `python -m studies.paper domains`; --list shows all studies.")
    clock = Clock(None if minutes is None else 60 * minutes)
    left = 0
    try:
        for progress in run_studies(
            studies,
            results,
            **selection,
            data=data,
            work=work,
            clock=clock,
            device=device,
            watch=_watch,
            note=note.strip().rstrip("."),
        ):
            _say_progress(progress)
            left += progress.state in ("cut off", "no time")
    except KeyboardInterrupt:
        clock.interrupted = True
    if "choices" in studies:
        _say_choices(results)
    if left or clock.interrupted:
        notes.print("Not everything is done: the same command continues where this one stopped.")
    if clock.interrupted:
        raise typer.Exit(130)
