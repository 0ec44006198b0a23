"""The command `ffl bench`: run or resume a benchmark suite."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import console


def bench_command(
    suite: Annotated[str, typer.Argument(help="A suite, or 'all'; without one the suites are listed.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Run so many cells at once, each in a process.")] = 1,
    seeds: Annotated[str, typer.Option("--seeds", help="Only these seeds, as in 1,2 or 1-3.")] = "",
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this entry; can be repeated.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The folder that holds the data sets.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder of result files.")] = Path("results/bench"),
    work: Annotated[Path, typer.Option("--work", help="The folder of run directories.")] = Path("runs/bench"),
    suites: Annotated[Path | None, typer.Option("--suites", help="A TOML file with suites of your own.")] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Write the page of all results to this file.")] = None,
) -> None:
    """Run or resume a benchmark suite; finished runs are not repeated."""
    from factorized_fl.bench.cells import cells_of, read_suites, run_cells
    from factorized_fl.bench.page import page as page_of
    from factorized_fl.bench.page import table
    from factorized_fl.cli.common import parse_numbers
    from factorized_fl.core.errors import UserError, unknown
    from factorized_fl.core.files import write_atomically

    known = read_suites(suites)
    if suite not in ("", "all", *known):
        raise unknown("suite", suite, known)
    wanted = [] if not suite else list(known) if suite == "all" else [suite]
    chosen = parse_numbers("--seeds", seeds) if seeds else []
    cells = [cell for name in wanted for cell in cells_of(name, known[name], chosen, only or [])]
    if not wanted and page is None:
        for name, found in known.items():
            done = len(list((out / name).glob("*.json")))
            console.print(f"{name}: {done} of {len(cells_of(name, found))} runs are done")
    failed = []
    for count, (cell, state) in enumerate(run_cells(cells, out, work, data=data, jobs=jobs), 1):
        console.print(f"{count}/{len(cells)} {cell.suite}/{cell.name}: {state}", soft_wrap=True)
        failed += [] if state in ("done", "was done") else [f"{cell.suite}/{cell.name}"]
    if page is not None:
        write_atomically(page, page_of(out, list(known)).encode())
    elif wanted:
        from factorized_fl.bench.cells import read_cell

        for name in wanted:
            if records := [read_cell(path) for path in sorted((out / name).glob("*.json"))]:
                console.print(table(name, records), markup=False, soft_wrap=True)
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} runs failed, the first is {failed[0]}: see its line above.")
