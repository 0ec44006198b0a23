"""The studies as jobs for the runner: their order, their choices, and the expected time of each.

Options that the paper leaves open are chosen on validation images and never on test images. Each candidate has one
short run with the first seed; the one with the best mean over clients after the last round is chosen, the first one of
equals. Clustered-FL's thresholds follow from the norms of a pilot run instead.
"""

import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorized_fl.pilots import Pilot
from factorized_fl.results.environment import device_name
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.run import find_device
from studies.paper import draws
from studies.paper.cells import ROOT, Cell
from studies.paper.findings import unexplained_first
from studies.paper.grid import FAMILIES, PILOT_PRESETS, PILOT_ROUNDS, pilot_cell, select
from studies.paper.heterogeneity import run_heterogeneity
from studies.paper.measures import measure
from studies.paper.table import CHOICES, read_choices, read_run
from studies.runner import Clock, Job, Progress, run_jobs, write_record

WORK = ROOT / "runs" / "paper"
Writer = Callable[[Path | None, str, Path], None]  # given the data, the device and the file


def files(studies: Sequence[str], results: Path, seeds: Sequence[int] = (), **narrowed: Sequence[str]) -> list[Path]:
    """Return the files of the results of some studies, in the order in which they are made."""
    cells = unexplained_first(select(studies, seeds, **narrowed), results)
    return [*(cell.path(results) for cell in cells), *_without_cells(studies, results, seeds)]


def _without_cells(studies: Sequence[str], results: Path, seeds: Sequence[int]) -> dict[Path, Writer]:
    """Return the files of the studies that have no cells, and what writes each."""
    writers: dict[str, Writer] = {}
    if "heterogeneity" in studies:
        writers |= {f"heterogeneity/seed{seed}": partial(run_heterogeneity, seed) for seed in seeds or (1,)}
    if "draws" in studies:
        writers |= {f"draws/{dataset}": partial(draws.run_draws, dataset) for dataset in draws.DATASETS}
    return {results / f"{name}.json": writer for name, writer in writers.items()}


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
    cells = unexplained_first(select(studies, seeds, methods, settings), results)
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
            write(data, device, path)
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
    done = [run for run in found if run.entry("environment/device") == machine]
    same = [run for run in done if run.record.get("method") == cell.method]
    if same:
        here = [run for run in same if run.record.get("setting") == cell.setting]
        return max(run.seconds for run in here or same)
    return 1.5 * statistics.median(run.seconds for run in done) if done else 0.0


def write_choices(results: Path) -> list[Record]:
    """Write and return the choices that follow from the finished short runs; the other studies read them."""
    made: list[Record] = []
    for family in FAMILIES:
        runs = [run for cell in family.cells() if (run := read_run(cell.path(results)))]
        scores = [(run.measure("percent") or 0.0) / 100 for run in runs]
        if len(scores) == len(family.candidates):
            both = zip(family.candidates, scores, strict=True)
            rule = f"best mean validation accuracy after {family.rounds} rounds on {family.preset}, seed 1"
            made.append({"methods": [family.method, *family.methods], "presets": list(family.presets) or None})
            made[-1] |= {"options": dict(family.candidates[scores.index(max(scores))]), "rule": rule}
            made[-1]["tried"] = [{"options": dict(options), "accuracy": round(score, 4)} for options, score in both]
    for preset in PILOT_PRESETS:
        if run := read_run(pilot_cell(preset).path(results)):
            pilot = Pilot([(number, *norms) for number, norms in enumerate(run.record["mixing"]["norms"], 2)])
            thresholds = {"eps1": float(f"{pilot.eps1:.4g}"), "eps2": float(f"{pilot.eps2:.4g}")}
            rule = f"eps1 = eps2 = a tenth of the largest mean update in {PILOT_ROUNDS} rounds without splits, seed 1"
            made.append({"methods": ["clustered-fl"], "presets": [preset], "options": thresholds, "rule": rule})
            made[-1]["tried"] = []
    if made:
        write_record(results / CHOICES, {"chosen": made})
    return made


def chosen_options(results: Path) -> Callable[[Cell], Mapping[str, Any]]:
    """Return a function from a cell to the options chosen for its method and preset; none for the short runs."""
    entries = read_choices(results)

    def options(cell: Cell) -> Mapping[str, Any]:
        valid = [entry["options"] for entry in entries if _valid_for(cell, entry["methods"], entry["presets"])]
        return {name: value for options in valid for name, value in options.items() if cell.study != "choices"}

    return options


def not_chosen(cells: Iterable[Cell], results: Path) -> list[str]:
    """Return the methods and presets, as "fedprox on cifar10-iid", whose open options were not chosen yet."""
    entries = [(entry["methods"], entry["presets"]) for entry in read_choices(results)]
    planned: list[tuple[Sequence[str], Sequence[str]]] = [((f.method, *f.methods), f.presets) for f in FAMILIES]
    planned.append((("clustered-fl",), PILOT_PRESETS))
    open_cells = [cell for cell in cells if any(_valid_for(cell, *each) for each in planned)]
    missing = [cell for cell in open_cells if not any(_valid_for(cell, *each) for each in entries)]
    return list(dict.fromkeys(f"{cell.method} on {cell.preset}" for cell in missing))


def _valid_for(cell: Cell, methods: Sequence[str], presets: Sequence[str] | None) -> bool:
    """Return whether a choice for these methods and presets, all if none is named, is valid for a cell."""
    return cell.method in methods and (not presets or cell.preset in presets)
