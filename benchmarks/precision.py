"""Whether bf16 costs accuracy: the same runs with bf16, TF32 and float32 convolutions.

    python benchmarks/precision.py [--out results/performance/precision.json]

Factorized-FL beta on the five domains, from the runs of `ffl reproduce`: each precision beside float32, over the seeds
that both have. One round differs from the next by more than half a point, so beside the last round stands the mean of
the last ten with their standard deviation. Two runs of one seed differ, too: "bf16 again" is `ffl reproduce domains
--methods factorized-fl-beta` with other --results.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from factorized_fl.reproduce.cells import Result, read_result

LAST = 10
RESULTS = Path("results")
EXACT = "fp32"
FILES = {
    "bf16": "paper/domains/factorized-fl-beta-seed*.json",
    "bf16 again": "performance/domains-beta-again-seed*.json",
    "tf32": "paper/departures/domains/factorized-fl-beta+tf32-seed*.json",
    EXACT: f"paper/departures/domains/factorized-fl-beta+{EXACT}-seed*.json",
}


def described(result: Result) -> dict[str, Any]:
    """The clients' mean accuracy in percent."""
    found = [100 * statistics.fmean(score for score in row if score is not None) for row in result.curve]
    return {
        "every_ten": [statistics.fmean(found[k : k + LAST]) for k in range(0, len(found), LAST)],
        "last_round": found[-1],
        "last_ten": statistics.fmean(found[-LAST:]),
        "spread_of_ten": statistics.stdev(found[-LAST:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/performance/precision.json"))
    arguments = parser.parse_args()
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for name, pattern in FILES.items():
        found = [result for path in sorted(RESULTS.glob(pattern)) if (result := read_result(path))]
        runs[name] = {result.seed: described(result) for result in found}
    if not runs[EXACT]:
        raise SystemExit(f"There is no exact run: `ffl reproduce departures --methods factorized-fl-beta+{EXACT}`.")
    differences = {}
    for name, by_seed in runs.items():
        for seed, run in by_seed.items():
            ten = f"last ten {run['last_ten']:.2f} ± {run['spread_of_ten']:.2f}"
            print(f"{name:10} seed {seed}: last round {run['last_round']:.2f}, {ten}")
        common = sorted(by_seed.keys() & runs[EXACT].keys())
        if name == EXACT or not common:
            continue
        differences[name] = {
            what: statistics.fmean(by_seed[seed][what] - runs[EXACT][seed][what] for seed in common)
            for what in ("last_round", "last_ten")
        }
    for name, each in differences.items():
        print(f"{name} less {EXACT}: last round {each['last_round']:+.2f}, last ten {each['last_ten']:+.2f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"differences": differences, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
