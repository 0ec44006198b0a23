"""Run cells of benchmark suites and of studies on a machine with many cores and a GPU, until a time limit.

    python benchmarks/dispatch.py PHASE ... --data DIR --results DIR --gpu 12 --minutes 9 [--mps]

A phase is `tune:SUITE`, `rates:SUITE` (writes the rates that its tuning chose), `bench:SUITE`, `options` (the runs that
choose options of Factorized-FL) or `align:PRESET` (the runs of studies.alignment_runs). Phases run in the order given;
cells of neighbouring phases run side by side, but those after a `rates` phase wait for the cells before it. A
cell whose file exists is not run again; one that the limit interrupts leaves no file.
"""

import argparse
import multiprocessing
import os
import queue
import shutil
import subprocess
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

Task = tuple[str, str, str]  # kind, where it belongs, name


def tasks_of(phase: str, results: Path) -> list[Task]:
    """Return the tasks of a phase whose files do not exist."""
    from factorized_fl.bench.rates import read_rates
    from factorized_fl.bench.suites import cells_of, read_suites, tuning_cells
    from studies.alignment_runs import suite_of
    from studies.mini.options import planned

    kind, _, name = phase.partition(":")
    if kind in ("tune", "bench", "align"):
        suite = suite_of(name) if kind == "align" else read_suites()[name]
        cells = tuning_cells(suite) if kind == "tune" else cells_of(suite, read_rates(suite, results))
        task = "align" if kind == "align" else "cell"
        return [(task, name, cell.name) for cell in cells if not cell.path(results).exists()]
    return [("option", cell.suite, cell.name) for cell in planned() if not cell.path(results).exists()]


def run_task(task: Task, results: Path, data: Path, device: str) -> None:
    """Run one task and write its file."""
    from factorized_fl.bench.cells import Place, run_cell, run_or_read
    from factorized_fl.bench.suites import read_suites
    from studies.alignment_runs import suite_of
    from studies.mini.options import planned

    kind, where, name = task
    with tempfile.TemporaryDirectory() as folder:
        place = Place(results, Path(folder), data, device, 1)
        if kind == "option":
            run_or_read(next(cell for cell in planned() if cell.name == name), place)
        else:
            run_cell(suite_of(where) if kind == "align" else read_suites()[where], name, place)


def work(tasks: Any, lines: Any, results: Path, data: Path, device: str) -> None:
    """Run tasks from the queue until it is empty."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    while True:
        try:
            task = tasks.get(timeout=1)
        except queue.Empty:
            return
        began, failed = time.monotonic(), ""
        try:
            run_task(task, results, data, device)
        except Exception:  # the other tasks go on; the reason is printed
            failed = traceback.format_exc(limit=-2)
        lines.put((task, time.monotonic() - began, failed))


def run_all(tasks: list[Task], results: Path, data: Path, places: list[str], end: float) -> int:
    """Run tasks in as many processes as there are places; return how many failed or were not finished."""
    context = multiprocessing.get_context("spawn")
    waiting, lines = context.Queue(), context.Queue()
    for task in tasks:
        waiting.put(task)
    began = time.monotonic()
    workers = [context.Process(target=work, args=(waiting, lines, results, data, at), daemon=True) for at in places]
    for worker in workers:
        worker.start()
    finished = failed = 0
    while finished < len(tasks) and time.monotonic() < end:
        try:
            task, seconds, reason = lines.get(timeout=1)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                break
            continue
        finished += 1
        failed += bool(reason)
        if reason or finished % 10 == 0 or finished == len(tasks):
            since = time.monotonic() - began
            print(
                f"{finished}/{len(tasks)} after {since:.0f} s, {task[1]} {task[2]} {seconds:.0f} s {reason[-400:]}",
                flush=True,
            )
    for worker in workers:
        worker.kill()
        worker.join()
    return len(tasks) - finished + failed


def main() -> None:
    """Parse the command line and run the phases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--most", type=int, default=0, help="at most so many cells, to try a machine out")
    parser.add_argument("--mps", action="store_true", help="let the processes share the GPU at the same time")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.mps and shutil.which("nvidia-cuda-mps-control"):
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = tempfile.mkdtemp()
        print("MPS:", subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False).returncode, flush=True)
    places = ["cpu"] * given.cpu + ["cuda"] * given.gpu
    from factorized_fl.bench.rates import write_rates
    from factorized_fl.bench.suites import read_suites

    pending: list[Task] = []
    for phase in [*given.phases, "end"]:
        if phase.startswith("rates:") or phase == "end":
            left = run_all(pending[: given.most or None], given.results, given.data, places, end) if pending else 0
            print(f"left or failed before '{phase}': {left}", flush=True)
            pending = []
            if time.monotonic() > end:
                break
            if phase != "end":
                chosen = write_rates(read_suites()[phase[6:]], given.results)
                print(phase, chosen["chosen"], "unfinished:", chosen["unfinished"], flush=True)
        else:
            pending += tasks_of(phase, given.results)
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, timeout=20)


if __name__ == "__main__":
    main()
