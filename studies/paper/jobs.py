"""The studies as jobs for the runner: in which order, with which choices, and what each is expected to take."""

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorized_fl.federation.environment import device_name
from factorized_fl.federation.run import find_device
from studies.paper import draws
from studies.paper.cells import ROOT, Cell
from studies.paper.choices import chosen_options, not_chosen, write_choices
from studies.paper.findings import unexplained_first
from studies.paper.grid import select
from studies.paper.heterogeneity import run_heterogeneity
from studies.paper.measures import measure
from studies.paper.runs import read_run
from studies.paper.table import collect
from studies.runner import Clock, Job, Progress, run_jobs

WORK = ROOT / "runs" / "paper"
Writer = Callable[[Path | None, str], None]


def files(studies: Sequence[str], results: Path, seeds: Sequence[int] = (), **narrowed: Sequence[str]) -> list[Path]:
    """Return the files of the results of some studies, in the order in which they are made."""
    cells = _in_order(select(studies, seeds, **narrowed), results)
    return [*(cell.path(results) for cell in cells), *_without_cells(studies, results, seeds)]


def _in_order(cells: list[Cell], results: Path) -> list[Cell]:
    """Return the cells in the order of the studies, deviations in that of what is not explained yet."""
    return unexplained_first(cells, collect(results)) if any(cell.study == "departures" for cell in cells) else cells


def _without_cells(studies: Sequence[str], results: Path, seeds: Sequence[int]) -> dict[Path, Writer]:
    """Return the files of the studies that have no cells, and what writes each, given the data and the device."""
    writers: dict[Path, Writer] = {}
    for seed in (seeds or (1,)) if "heterogeneity" in studies else ():
        path = results / "heterogeneity" / f"seed{seed}.json"
        writers[path] = partial(run_heterogeneity, path, seed)
    for dataset in draws.DATASETS if "draws" in studies else ():
        path = results / "draws" / f"{dataset}.json"
        writers[path] = partial(draws.run_draws, path, dataset)
    return writers


def run_studies(
    studies: Sequence[str],
    results: Path,
    *,
    seeds: Sequence[int] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
    data: Path | None = None,
    clock: Clock | None = None,
    device: str = "auto",
    **options: Any,
) -> Iterator[Progress]:
    """Run what is missing of some studies and yield the state of each cell; `options` are those of `run_jobs`."""
    clock = clock or Clock()
    cells = _in_order(select(studies, seeds, methods, settings), results)
    options |= {"data": data, "clock": clock, "device": device}
    if "choices" in studies:
        yield from run_cells([cell for cell in cells if cell.study == "choices"], results, **options)
        write_choices(results)
    cells = [cell for cell in cells if cell.study != "choices"]
    if missing := not_chosen([cell for cell in cells if not cell.path(results).exists()], results):
        warnings.warn(
            f"Options that the paper leaves open were not chosen for {', '.join(missing)}: the preset's values are "
            "used. `python -m studies.paper choices` chooses them and should be run first.",
            stacklevel=2,
        )
    yield from run_cells(cells, results, chosen=chosen_options(results), **options)
    for path, write in _without_cells(studies, results, seeds).items():
        state = "was done" if path.exists() else "no time" if clock.left <= 0 else "done"
        if state == "done":
            write(data, device)
        yield Progress(f"{path.parent.name}/{path.stem}", state)


def run_cells(
    cells: Sequence[Cell],
    results: Path,
    *,
    work: Path = WORK,
    device: str = "auto",
    chosen: Callable[[Cell], Mapping[str, Any]] = lambda cell: {},
    **options: Any,
) -> Iterator[Progress]:
    """Run the cells that have no file yet, in order, and yield the state of each."""
    machine = device_name(find_device(device))
    jobs = []
    for cell in cells:
        expected = partial(expected_seconds, cell, results, machine)
        jobs.append(Job(cell.name, cell.path(results), cell.config(chosen(cell)), partial(measure, cell), expected))
    return run_jobs(jobs, work, device=device, **options)


def expected_seconds(cell: Cell, results: Path, machine: str) -> float:
    """Return the time that cells of the same study took on such a machine; 0 if nothing is known.

    That is the longest of the same method, in the same setting if there are any, otherwise 1.5 times the median cell.
    """
    found = [run for path in sorted((results / cell.study).rglob("*.json")) if (run := read_run(path))]
    done = [run for run in found if run.device == machine]
    same = [run for run in done if run.record.get("method") == cell.method]
    if same:
        here = [run for run in same if run.record.get("setting") == cell.setting]
        return max(run.seconds for run in here or same)
    return 1.5 * statistics.median(run.seconds for run in done) if done else 0.0
