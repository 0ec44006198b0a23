"""Differential privacy on PACS with a frozen backbone: Stand-Alone, FedAvg and Factorized-Peers at epsilon 8 and 3.

Usage: python -m benchmarks.private_pacs DATA OUT [--seeds 1 2 3]. DATA is the folder with a folder of each style; see
benchmarks/pacs.py for the backbone. Learning rate and clipping norm are those with the best accuracy of FedAvg on
validation images at epsilon 8, with a seed that is not reported; this choice is not counted in epsilon. The results are
written to results/privacy/dp-pacs.json after each epsilon.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w

import factorized_fl as ffl
from benchmarks.pacs import SETTINGS
from factorized_fl.results.comparison import comparison_json, run_folder
from factorized_fl.results.reading import read_run

METHODS = ("stand-alone", "fedavg", "factorized-peers")
EPSILONS = (8.0, 3.0)
PRIVATE = {**SETTINGS, "images_per_client": 0, "epochs": 1, "batch_size": 100, "rounds": 6, "test_every": 6}
RATES, CLIPS, CHOICE_SEED = (0.1, 0.3), (0.3, 1.0), 11
RESULT = Path("results/privacy/dp-pacs.json")


def choose(base: Path, data: Path, out: Path) -> list[dict[str, float]]:
    """The accuracy of FedAvg on validation images for each learning rate and clipping norm."""
    found = []
    for lr in RATES:
        for clip in CLIPS:
            given = {"lr": lr, "privacy.clip": clip, "privacy.epsilon": EPSILONS[0], "score": "validation"}
            folder = out / f"{lr}-{clip}"
            ffl.run(str(base), folder, method="fedavg", data=data, resume=True, seed=CHOICE_SEED, **given)
            found.append({"lr": lr, "clip": clip, "validation": mean_accuracy(folder)})
    return found


def mean_accuracy(folder: Path) -> float:
    return statistics.fmean(result["accuracy"] for result in read_run(folder, strict=True).final)


def spent(folder: Path) -> list[float]:
    """The least and the largest epsilon that a client spent."""
    lines = [line for line in read_run(folder, strict=True).metrics if line["round"] == PRIVATE["rounds"]]
    found = [line["epsilon"] for line in lines]
    return [min(found), max(found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    began = time.monotonic()
    report: dict[str, Any] = {"settings": PRIVATE, "seeds": given.seeds, "delta": 1e-5, "choice_seed": CHOICE_SEED}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "pacs.toml"
        base.write_text(tomli_w.dumps({**PRIVATE, "model": "benchmarks.pacs:Net"}))
        report["choices"] = choose(base, given.data, given.out / "choices")
        best = max(report["choices"], key=lambda row: row["validation"])
        report |= {"lr": best["lr"], "clip": best["clip"], "epsilon": {}}
        for epsilon in EPSILONS:
            runs = given.out / f"epsilon-{epsilon:g}"
            settings = {"lr": best["lr"], "privacy.clip": best["clip"], "privacy.epsilon": epsilon}
            rows = ffl.compare(str(base), METHODS, given.seeds, runs, data=given.data, resume=True, **settings)
            report["epsilon"][f"{epsilon:g}"] = [
                {
                    **json.loads(comparison_json([row]))[0],
                    "by_seed": [mean_accuracy(runs / run_folder(row.method, seed)) for seed in given.seeds],
                    "epsilon_spent": spent(runs / run_folder(row.method, given.seeds[0])),
                }
                for row in rows
            ]
            environment = runs / run_folder("stand-alone", given.seeds[0]) / "environment.json"
            report["environment"] = json.loads(environment.read_text())
            report["seconds"] = round(time.monotonic() - began, 1)
            RESULT.parent.mkdir(parents=True, exist_ok=True)
            RESULT.write_text(json.dumps(report, indent=2) + "\n")
            print(f"epsilon {epsilon:g} done after {report['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
