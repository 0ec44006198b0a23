"""How long commands take to start, and a run to reach its first round, beside an earlier commit.

    python benchmarks/startup.py [--before 31b0f0b] [--repeat 7] [--runs-before e33082e] [--run-repeat 5]
                                 [--only commands|runs] [--out results/performance/startup.json]

The two source trees are started in turn, each in a process; the figures are medians. Both are compiled to bytecode
before, as pip does when it installs a package. Runs are those of `benchmarks/cpu_loops.py`: `start` is the time from
the start of the process to the first round, `torch` that of importing PyTorch in it, and `rest` their difference, with
Python's own start and the making of the data, for which `bare` is the measure. `cpu` and `rest_cpu` are the processor
times of the first process, which other work on the machine disturbs less: on a free core a start takes about as long.
"""

import argparse
import io
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers_cpu import ROOT, command_of, compiled

COMMANDS = ("--help", "--version", "presets", "run --help")
STARTS = (
    ("bare", "small"),
    ("ours", "small"),
    ("ours, 2 processes", "small"),
    ("ours", "resnet9"),
    ("ours, 2 processes, bf16, factorised", "resnet9"),
)


def seconds(tree: Path, command: str) -> float:
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "factorized_fl.cli", *command.split()],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def tree_of(commit: str, folder: str) -> Path:
    """Unpacks the package of a commit, and returns its source tree."""
    archive = subprocess.check_output(["git", "archive", commit, "factorized_fl"], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return compiled(Path(folder))


def time_commands(before: Path, repeat: int) -> dict[str, dict[str, float]]:
    """Seconds of each command, before and now."""
    found = {}
    for command in COMMANDS:
        pairs = [(seconds(before, command), seconds(ROOT, command)) for _ in range(repeat + 1)]
        early, now = (statistics.median(side) for side in zip(*pairs[1:], strict=True))  # the first fills caches
        found[command] = {"before_s": round(early, 3), "now_s": round(now, 3), "share": round(now / early, 3)}
        print(f"ffl {command}: {now:.2f} s, before {early:.2f} s, share {now / early:.2f}", flush=True)
    return found


def started(name: str, network: str, tree: Path) -> dict[str, float]:
    """Starts a run with the package of this source tree, and ends it when its first round begins."""
    command, environment = command_of(name, sys.executable, network, 1)
    environment["PYTHONPATH"] = str(tree)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    try:
        found: dict[str, float] = next(json.loads(line) for line in process.stdout if line.startswith('{"started"'))
    except StopIteration:
        raise SystemExit(f"{name}, {network}, has not started: run {command} to see why.") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session, with the processes that it started
        process.wait()
    return found


def time_runs(before: Path, repeat: int) -> list[dict[str, Any]]:
    """Seconds until the first round of each run, before and now."""
    found = []
    for name, network in STARTS:
        trees = {"before": before, "now": ROOT}
        starts: dict[str, list[dict[str, float]]] = {when: [] for when in trees}
        for turn in range(repeat + 1):
            for when, tree in trees.items():
                run = started(name, network, tree)
                if turn:  # the first fills caches
                    starts[when].append(run)
        row: dict[str, Any] = {"name": name, "network": network}
        for when, runs in starts.items():
            medians = {
                "start": statistics.median(run["started"] for run in runs),
                "torch": statistics.median(run["torch"] for run in runs),
                "rest": statistics.median(run["started"] - run["torch"] for run in runs),
                "cpu": statistics.median(run["cpu"] for run in runs),
                "rest_cpu": statistics.median(run["cpu"] - run["torch_cpu"] for run in runs),
            }
            row[when] = {what: round(value, 3) for what, value in medians.items()}
        found.append(row)
        both = (
            f"{when} {r['start']:.2f} s, without torch {r['rest']:.2f} s (processor time {r['cpu']:.2f} and "
            f"{r['rest_cpu']:.2f} s)"
            for when, r in list(row.items())[2:]
        )
        print(f"{name}, {network}: {'; '.join(both)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default="31b0f0b")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--runs-before", default="e33082e")
    parser.add_argument("--run-repeat", type=int, default=5)
    parser.add_argument("--only", choices=("commands", "runs"), help="keep the other part of the file")
    parser.add_argument("--out", type=Path, default=Path("results/performance/startup.json"))
    arguments = parser.parse_args()
    compiled(ROOT)
    record = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    record["python"] = platform.python_version()
    with tempfile.TemporaryDirectory() as early, tempfile.TemporaryDirectory() as late:
        if arguments.only != "runs":
            commands = time_commands(tree_of(arguments.before, early), arguments.repeat)
            record |= {"before": arguments.before, "commands": commands}
        if arguments.only != "commands":
            runs = time_runs(tree_of(arguments.runs_before, late), arguments.run_repeat)
            record |= {"runs_before": arguments.runs_before, "runs": runs}
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
