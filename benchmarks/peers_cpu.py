"""FedAvg on a CPU: a bare PyTorch loop, FedLab, pfl-research, Flower's simulation, and this package, in turns.

    python benchmarks/peers_cpu.py [--environment .cache/peers] [--only "NAME;..."] [--repeats 3] [--rounds 5]
                                   [--network small] [--out results/performance/peers-cpu.json]

`benchmarks/cpu_work.py` says what is trained, `benchmarks/cpu_loops.py` how. With `--network resnet9` the bare loop and
this package alone train the paper's ResNet-9.

Each run is a process with PyTorch's own number of threads unless its name says otherwise; the runs take turns. `ratio`
is that of the medians of seconds per round, `ratio_of_fastest` that of the fastest round of each, which other work on
the machine disturbs least. `start` is the time from the start of the process to the first round, with imports, and
`torch` that of importing PyTorch in it; `peak` is the largest memory of the process and its children. All packages are
compiled to bytecode before, as pip does when it installs them.

The other implementations come from PyPI into an environment that the script makes. One that cannot be installed or
fails is named with the reason, and the others are still run.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cpu_loops import RUNS
from cpu_work import WORKS

LOOPS = Path(__file__).with_name("cpu_loops.py")
ROOT = Path(__file__).parents[1]
WIDTH = 34  # of the column of names
TORCH = "torch>=2.11,<2.14"  # so that pip takes the wheel that this package was tested with
PACKAGES = {
    "fedlab": [
        ["--no-deps", "fedlab==1.3.0"],
        ["munch", "pandas", "tqdm", "psutil", "numpy", "pynvml", "pillow", "scikit-learn"],
    ],
    "pfl-research": [["pfl[pytorch]==0.6.0"]],
    "flower": [["flwr[simulation]==1.13.1"]],
}


def memory(process: int) -> float:
    """The memory of the process and its children in GiB; a page that n processes share counts 1/n in each."""
    import psutil

    total = 0
    try:
        whole = psutil.Process(process)
        for each in (whole, *whole.children(recursive=True)):
            total += getattr(each.memory_full_info(), "pss", 0)
    except psutil.Error:
        return 0.0
    return total / 2**30


def command_of(name: str, python: str, network: str, rounds: int) -> tuple[list[str], dict[str, str]]:
    """The command of one run that begins now, and its environment."""
    environment = os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment.pop("OMP_NUM_THREADS", None)
    if RUNS[name].threads:
        environment["OMP_NUM_THREADS"] = str(RUNS[name].threads)
    command = [python, str(LOOPS), name, "--network", network, "--rounds", str(rounds)]
    return [*command, "--began", str(time.time())], environment


def once(name: str, python: str, network: str, rounds: int) -> dict[str, Any]:
    """One run; its error, if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command, environment = command_of(name, python, network, rounds)
        environment["PYTHONPATH"] = str(ROOT)
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        peak, ended = [0.0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                peak[0] = max(peak[0], memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process.wait(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
        ended.set()
        watcher.join()
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith('{"start"')]
        if process.returncode or not lines:
            return {"error": (errors.read().strip().splitlines() or ["no output"])[-1][-300:]}
        return {**json.loads(lines[-1]), "peak_gib": peak[0]}


def install(folder: Path, names: list[str]) -> dict[str, str]:
    """Makes the environment of the others; returns why some of them could not be installed."""
    python, failed = folder / "bin" / "python", dict[str, str]()
    if names and not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", TORCH, "numpy", "psutil"], check=True)
    for name in names:
        marker = folder / f"{name}.installed"
        if marker.exists():
            continue
        for packages in PACKAGES[name]:
            pinned = [] if "--no-deps" in packages else [TORCH]
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", *packages, *pinned], capture_output=True, text=True
            )
            if done.returncode:
                failed[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                break
        else:
            marker.touch()
    return failed


def compiled(tree: Path) -> Path:
    """Compiles the package of a source tree, and returns the tree."""
    compileall.compile_dir(tree / "factorized_fl", quiet=2)
    return tree


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The medians over the runs, and the fastest of all their rounds."""
    found = {what: statistics.median(run[what] for run in runs) for what in ("start", "torch", "peak_gib")}
    rounds = [seconds for run in runs for seconds in run["rounds"]]
    return {**found, "seconds": statistics.median(rounds), "fastest": min(rounds)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--only", help="names, separated by semicolons; by default all that train this network")
    parser.add_argument("--network", choices=WORKS, default="small")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two runs")
    parser.add_argument("--out", type=Path, default=Path("results/performance/peers-cpu.json"))
    arguments = parser.parse_args()
    fitting = [name for name, run in RUNS.items() if arguments.network in run.networks]
    names = arguments.only.split(";") if arguments.only else fitting
    package = {name: name.partition(",")[0] for name in names}
    failed = install(arguments.environment, sorted({*package.values()} & {*PACKAGES}))
    compiled(ROOT)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names if package[name] not in failed}
    for turn in range(arguments.repeats):
        for name in list(runs):
            of_peer = package[name] in PACKAGES
            python = str(arguments.environment / "bin" / "python") if of_peer else sys.executable
            time.sleep(arguments.pause)
            found = once(name, python, arguments.network, arguments.rounds)
            if "error" in found:
                failed[name] = found["error"]
                del runs[name]
                print(f"{name:{WIDTH}} failed: {found['error']}", flush=True)
                continue
            found["seconds"] = statistics.median(found["rounds"])
            runs[name].append(found)
            numbers = (
                f"{found['seconds']:.2f} s a round, start {found['start']:.1f} s, peak {found['peak_gib']:.2f} GiB"
            )
            print(f"{name:{WIDTH}} turn {turn + 1}: {numbers}", flush=True)
    from factorized_fl.results.environment import describe_environment

    rows = {name: summary(all_of) for name, all_of in runs.items() if all_of}
    for row in rows.values():
        row["ratio"] = row["seconds"] / rows["bare"]["seconds"]
        row["ratio_of_fastest"] = row["fastest"] / rows["bare"]["fastest"]
    print(f"\n{'':{WIDTH}} ratio  of fastest  s a round  start s  torch s  peak GiB")
    for name, row in rows.items():
        print(
            f"{name:{WIDTH}} {row['ratio']:5.2f} {row['ratio_of_fastest']:11.2f} {row['seconds']:10.2f} "
            f"{row['start']:8.1f} {row['torch']:8.1f} {row['peak_gib']:9.2f}"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"rows": rows, "failed": failed, "runs": runs, "environment": describe_environment(1, "cpu")}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
