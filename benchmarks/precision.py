"""Whether bf16 costs accuracy: the same runs with bf16 and with exacter convolutions, round by round.

    python benchmarks/precision.py [--bf16 FILE... --exact FILE...] [--out results/performance/precision.json]

By default Factorized-FL beta on the five domains with bf16 and with TF32, the seeds that both have, from
results/paper/, and the mean of their differences. One round differs from the next by more than half a point, so beside
the last round stands the mean of the last ten with their standard deviation.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from factorized_fl.reproduce.cells import Result, read_result

LAST = 10
PAPER = Path("results/paper")
NAMES = {
    "bf16": "domains/factorized-fl-beta-seed*.json",
    "exact": "departures/domains/factorized-fl-beta+tf32-seed*.json",
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
    for name in NAMES:
        parser.add_argument(f"--{name}", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results/performance/precision.json"))
    arguments = parser.parse_args()
    cells: dict[str, dict[int, Result]] = {}
    for name, pattern in NAMES.items():
        paths = getattr(arguments, name) or sorted(PAPER.glob(pattern))
        cells[name] = {result.seed: result for path in paths if (result := read_result(path))}
    rows = []
    for seed in sorted(cells["bf16"].keys() & cells["exact"].keys()):
        pair = {name: described(cells[name][seed]) for name in NAMES}
        differences = {what: pair["bf16"][what] - pair["exact"][what] for what in ("last_round", "last_ten")}
        rows.append({"seed": seed, **pair, "difference": differences})
        print(
            f"seed {seed}: last round {pair['bf16']['last_round']:.2f} against {pair['exact']['last_round']:.2f}, "
            f"last ten {pair['bf16']['last_ten']:.2f} ± {pair['bf16']['spread_of_ten']:.2f} "
            f"against {pair['exact']['last_ten']:.2f} ± {pair['exact']['spread_of_ten']:.2f}"
        )
    if not rows:
        raise SystemExit(
            "There are no two runs of one seed: `ffl reproduce departures --methods factorized-fl-beta+tf32`."
        )
    mean = {what: statistics.fmean(row["difference"][what] for row in rows) for what in rows[0]["difference"]}
    print(f"mean difference: last round {mean['last_round']:+.2f}, last ten {mean['last_ten']:+.2f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"difference": mean, "seeds": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
