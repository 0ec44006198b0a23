"""How long `ffl --help` takes here, as a share of what it took at an earlier commit.

    python benchmarks/startup.py [--before 31b0f0b] [--repeat 7] [--out results/performance/startup.json]

The two source trees are started in turn, each in a process of its own; the figures are medians.
"""

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ("--help", "--version", "presets", "run --help")


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default="31b0f0b")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/performance/startup.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", arguments.before, "factorized_fl"], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        found = {}
        for command in COMMANDS:
            before, now = [], []
            for repeat in range(arguments.repeat + 1):
                pair = seconds(Path(folder), command), seconds(ROOT, command)
                if repeat:  # the first compiles bytecode
                    before.append(pair[0])
                    now.append(pair[1])
            median = statistics.median(before), statistics.median(now)
            share = median[1] / median[0]
            found[command] = {"before_s": round(median[0], 3), "now_s": round(median[1], 3), "share": round(share, 3)}
            print(f"ffl {command}: {median[1]:.2f} s, before {median[0]:.2f} s, share {share:.2f}")
    record = {"before": arguments.before, "python": platform.python_version(), "commands": found}
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
