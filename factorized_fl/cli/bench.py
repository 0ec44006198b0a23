"""The command `ffl bench`: run or resume a benchmark suite."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from factorized_fl.cli.common import console

if TYPE_CHECKING:
    from factorized_fl.bench.suites import Cell


def bench_command(
    suite: Annotated[str, typer.Argument(help="A suite, or 'all'; without one the suites are listed.")] = "",
    tune: Annotated[bool, typer.Option("--tune", help="Choose learning rates on validation images.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of runs at a time, each in a process.")] = 1,
    seeds: Annotated[str, typer.Option("--seeds", help="Only these seeds, as in 1,2 or 1-3.")] = "",
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this entry; can be repeated.")] = None,
    cell: Annotated[list[str] | None, typer.Option("--cell", help="Only the run of this name; repeatable.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names of missing runs; run nothing.")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="The folder that holds the data sets.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder of result files.")] = Path("results/bench"),
    work: Annotated[Path, typer.Option("--work", help="The folder of run directories.")] = Path("runs/bench"),
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, or auto.")] = "auto",
    threads: Annotated[int, typer.Option("--threads", min=0, help="Threads of a run; 0: cores / jobs.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run directories of finished runs.")] = False,
    suites: Annotated[Path | None, typer.Option("--suites", help="A TOML file with suites of your own.")] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Write the page of all results to this file.")] = None,
) -> None:
    """Run or resume a benchmark suite; finished runs are not repeated."""
    from factorized_fl.bench.cells import Place, expected_seconds, run_cells
    from factorized_fl.bench.page import page as page_of
    from factorized_fl.bench.page import suite_section
    from factorized_fl.bench.rates import read_rates, write_rates
    from factorized_fl.bench.suites import cells_of, find_cell, read_suites, tuning_cells
    from factorized_fl.cli.common import parse_numbers
    from factorized_fl.core.errors import UserError, unknown
    from factorized_fl.core.files import write_atomically
    from factorized_fl.simulate.side_by_side import threads_for

    known = read_suites(suites)
    if suite not in ("", "all", *known):
        raise unknown("suite", suite, known)
    if tune and seeds:
        raise UserError(f"--seeds {seeds} has no effect with --tune, which runs one seed: leave one of them out.")
    if cell and (tune or only or seeds or suite in ("", "all")):
        raise UserError("--cell names single runs of one suite: give the suite, without --tune, --only and --seeds.")
    wanted = [known[suite]] if suite in known else list(known.values()) if suite == "all" else []
    chosen = parse_numbers("--seeds", seeds) if seeds else []
    cells: list[Cell] = []
    for found in wanted:
        if cell:
            cells += [find_cell(found, name) for name in cell]
        elif tune:
            cells += [] if suite == "all" and found.rates_of else tuning_cells(found, only or [])
        else:
            cells += cells_of(found, read_rates(found, out), chosen, only or [])
    if listed:
        for each in cells:
            if not each.path(out).exists():
                print(each.suite, each.name)
        return
    if not wanted and page is None:
        for name, found in known.items():
            runs = cells_of(found, read_rates(found, out))
            tuning = [] if found.rates_of else tuning_cells(found)
            both = list({each.name: each for each in (*tuning, *runs)}.values())
            console.print(
                f"{name}: {_done(runs, out)} of {len(runs)} runs, {_done(tuning, out)} of {len(tuning)} of its tuning "
                f"are done{_minutes(expected_seconds(both, out, jobs))}",
                soft_wrap=True,
            )
    if cells:
        before = expected_seconds(cells, out, jobs)
        console.print(f"{len(cells)} runs, {_done(cells, out)} done{_minutes(before)}", soft_wrap=True)
    failed = []
    place = Place(out, work, data, device, threads or threads_for(jobs), keep)
    for count, (each, state) in enumerate(run_cells(cells, place, jobs), 1):
        left = _minutes(expected_seconds(cells, out, jobs)) if state == "done" else ""
        console.print(f"{count}/{len(cells)} {each.suite}/{each.name}: {state}{left}", soft_wrap=True)
        failed += [] if state in ("done", "was done") else [f"{each.suite}/{each.name}"]
    for found in wanted:
        if tune and not found.rates_of:
            rates = write_rates(found, out)
            for entry, choice in rates["chosen"].items():
                text = ", ".join(f"{key} = {value}" for key, value in choice.items())
                console.print(f"{found.name}: {entry} has {text}", soft_wrap=True)
        elif not cell and page is None:
            console.print(suite_section(found, out), markup=False, soft_wrap=True)
    if page is not None:
        write_atomically(page, page_of(out, list(known.values())).encode())
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} runs failed, the first is {failed[0]}: see its line above.")


def _done(cells: Sequence["Cell"], out: Path) -> int:
    return sum(cell.path(out).exists() for cell in cells)


def _minutes(seconds: float | None) -> str:
    """Return how long the rest takes, as the end of a sentence; empty if that is unknown."""
    return "" if seconds is None else f", about {seconds / 60:.0f} minutes left"
