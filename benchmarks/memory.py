"""Peak memory of a run over the number of clients: it should grow with their state and not with copies of the data.

    python benchmarks/memory.py --data DIR [--out results/performance/memory.json]

Each number of clients is measured in a process of its own. Two clients train in each, so that activations have the
same size.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from factorized_fl.api import configure, run
from factorized_fl.nn import build_model, describe, factorize
from factorized_fl.results.environment import describe_environment

COUNTS = (10, 40, 100)  # far apart: activations make the peak vary by a few hundred MiB from run to run


def one(clients: int, data: Path) -> None:
    config = configure(
        "cifar10-permuted-iid",
        "factorized-fl-beta",
        clients=clients,
        rounds=2,
        epochs=1,
        fraction=2 / clients,
        batch_size=16,
        images_per_client=32,
        train_share=0.98,
    )
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run", data=data)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def state_mib() -> float:
    """The size of a factorised ResNet-9 and its momentum."""
    counts = describe(factorize(build_model("resnet9", 10)))
    return (2 * counts.total - counts.stat) * 4 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--one", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/performance/memory.json"))
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.data)
        return
    peaks = {}
    for clients in COUNTS:
        command = [sys.executable, __file__, "--data", str(arguments.data), "--one", str(clients)]
        peaks[clients] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{clients} clients: {peaks[clients]:.0f} MiB")
    growth = (peaks[COUNTS[-1]] - peaks[COUNTS[0]]) / (COUNTS[-1] - COUNTS[0])
    result = {
        "peak_mib": peaks,
        "growth_mib_per_client": growth,
        "state_mib_per_client": state_mib(),
        "environment": describe_environment(1, "cpu"),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"growth: {growth:.1f} MiB per client; its state and momentum: {result['state_mib_per_client']:.1f} MiB")


if __name__ == "__main__":
    main()
