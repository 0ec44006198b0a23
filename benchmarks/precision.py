"""Whether bf16 costs accuracy: the same runs with bf16, TF32 and float32 convolutions.

    python benchmarks/precision.py [--out results/performance/precision.json]

Factorized-FL beta on the five domains, from the runs of `python -m studies.paper`: each precision beside float32, over
the seeds that both have. One round differs from the next by more than half a point, so beside the last round stands the
mean of the last ten with their standard deviation. Two runs of one seed also differ: "bf16 again" is a later engine, by

    python benchmarks/full_run.py --data DIR --preset cifar100-domains --set seed=1 --set tau=0 --set epsilon=1 \
                                  --out results/performance/domains-beta-seed1.json

which keeps the last round alone. All have to have the float32 run's configuration but for the precision.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorized_fl.api import configure
from factorized_fl.config import Config, from_table
from factorized_fl.core.toml_text import parse_setting
from studies.paper.table import Run, read_run

LAST = 10
RESULTS = Path("results")
EXACT = "fp32"
FILES = {
    EXACT: f"paper/deviations/domains/factorized-fl-beta+{EXACT}-seed*.json",
    "tf32": "paper/deviations/domains/factorized-fl-beta+tf32-seed*.json",
    "bf16": "paper/domains/factorized-fl-beta-seed*.json",
}
AGAIN = "performance/domains-beta-seed*.json"


def described(result: Run) -> dict[str, Any]:
    """The clients' mean accuracy in percent."""
    found = [100 * statistics.fmean(score for score in row if score is not None) for row in result.curve]
    return {
        "every_ten": [statistics.fmean(found[k : k + LAST]) for k in range(0, len(found), LAST)],
        "last_round": found[-1],
        "last_ten": statistics.fmean(found[-LAST:]),
        "spread_of_ten": statistics.stdev(found[-LAST:]),
    }


def check(config: Config, exact: Config, path: Path) -> None:
    """The same run as the exact one but for the precision, or else the two say nothing about it."""
    if replace(config, precision=exact.precision) != exact:
        raise SystemExit(f"{path} comes from another configuration than the {EXACT} run of its seed.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/performance/precision.json"))
    arguments = parser.parse_args()
    exact: dict[int, Config] = {}
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for name, pattern in FILES.items():
        runs[name] = {}
        for path in sorted(RESULTS.glob(pattern)):
            if result := read_run(path):
                config = from_table(result.configuration)
                check(config, exact.setdefault(result.seed, config), path)
                runs[name][result.seed] = described(result)
    if not runs[EXACT]:
        raise SystemExit(
            f"There is no exact run: `python -m studies.paper deviations --methods factorized-fl-beta+{EXACT}`."
        )
    runs["bf16 again"] = {}
    for path in sorted(RESULTS.glob(AGAIN)):
        row = json.loads(path.read_text())
        config = configure(row["preset"], row["method"], **dict(parse_setting(text) for text in row["settings"]))
        check(config, exact.setdefault(config.seed, config), path)
        runs["bf16 again"][config.seed] = {"last_round": 100 * row["accuracy"]}
    differences = {}
    for name, by_seed in runs.items():
        for seed, run in by_seed.items():
            ten = f", last ten {run['last_ten']:.2f} ± {run['spread_of_ten']:.2f}" if "last_ten" in run else ""
            print(f"{name:10} seed {seed}: last round {run['last_round']:.2f}{ten}")
        common = sorted(by_seed.keys() & runs[EXACT].keys())
        if name == EXACT or not common:
            continue
        differences[name] = {
            what: statistics.fmean(by_seed[seed][what] - runs[EXACT][seed][what] for seed in common)
            for what in ("last_round", "last_ten")
            if all(what in by_seed[seed] for seed in common)
        }
    for name, each in differences.items():
        print(f"{name} less {EXACT}: " + ", ".join(f"{what.replace('_', ' ')} {by:+.2f}" for what, by in each.items()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"differences": differences, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
