"""Accuracies of the demo's clients with bf16 on a CPU beside those with float32, from the same seeds.

    python benchmarks/cpu_precision_accuracy.py [--seeds 5] [--out results/performance/cpu-precision-accuracy.json]

The demo's twelve clients on embedded images with ResNet-9 of a quarter of the width, three rounds, tested on all their
test images. `difference` is the mean over clients of accuracy with bf16 minus accuracy with float32, in points, by
seed; `interval` is its 95% interval over seeds. `between_seeds` is the mean absolute difference of two seeds' mean
accuracies with float32, a scale to compare with.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from scipy.stats import t as student

import factorized_fl as ffl
from factorized_fl.results.environment import describe_environment

METHODS = ("fedavg", "factorized-fl", "factorized-peers")
SETTINGS: dict[str, Any] = {"model": "resnet9", "width": 0.25, "rounds": 3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/performance/cpu-precision-accuracy.json"))
    arguments = parser.parse_args()
    rows = {}
    for method in METHODS:
        accuracies: dict[str, list[float]] = {"fp32": [], "bf16": []}
        for seed, precision in itertools.product(range(1, arguments.seeds + 1), accuracies):
            with tempfile.TemporaryDirectory() as folder:
                run = ffl.run(
                    "demo", Path(folder) / "run", method=method, seed=seed, cpu_precision=precision, progress=False,
                    **SETTINGS,
                )  # fmt: skip
                accuracies[precision].append(100 * run.summary()["accuracy_mean"])
        differences = [half - full for half, full in zip(accuracies["bf16"], accuracies["fp32"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        mean, margin = statistics.mean(differences), float(student.ppf(0.975, len(differences) - 1)) * error
        pairs = [abs(a - b) for a, b in itertools.combinations(accuracies["fp32"], 2)]
        rows[method] = {
            "accuracies": accuracies, "differences": differences, "difference": mean,
            "interval": [mean - margin, mean + margin], "between_seeds": statistics.mean(pairs),
        }  # fmt: skip
        print(f"{method:18} bf16 {mean:+.2f} points ({mean - margin:+.2f} to {mean + margin:+.2f})", flush=True)
    result = {"settings": SETTINGS, "methods": rows, "environment": describe_environment(1, "cpu")}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
