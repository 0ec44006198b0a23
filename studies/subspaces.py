"""Angles between the subspaces of clients' images, which PACFL clusters by: results/align/angles.json.

python -m studies.subspaces measure DATA    a few seconds
python -m studies.subspaces show            prints the rows of the table in docs/prior-art.md
"""

import json
import sys
from pathlib import Path

import torch

from factorized_fl.api import configure
from factorized_fl.methods.pacfl import PACFL, clusters_below
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.scenario import build_scenario_of
from studies.runner import write_measured

PRESET, SEEDS = "mini-domains", (1, 2, 3)
THRESHOLDS = {"smallest": (5, 7, 10), "sum": (60, 80, 110)}  # degrees
PATH = Path("results/align/angles.json")


def measure_angles(angle: str, seed: int, data: Path) -> Record:
    """The least and the largest angle inside domains and between them, and the number of clusters by threshold."""
    config = configure(PRESET, "pacfl", seed=seed, **{"pacfl.angle": angle})
    scenario, method = build_scenario_of(config, data), config.build_method()
    assert isinstance(method, PACFL)
    state = build_federation(config, scenario, torch.device("cpu"), "reference").clients.state
    domains = [client.domain for client in scenario.clients]
    angles = method.angles(torch.stack([state.client(k)["fingerprint"] for k in range(len(domains))]))
    same = torch.tensor([[one == two for two in domains] for one in domains])
    pairs = torch.ones_like(same).triu(1)
    ends = {
        name: [round(float(end), 1) for end in angles[pairs & kind].aminmax()]
        for name, kind in (("inside", same), ("between", ~same))
    }
    clusters = {str(limit): len(clusters_below(angles, limit, method.linkage).unique()) for limit in THRESHOLDS[angle]}
    return {"angle": angle, "seed": seed, **ends, "domains": len({*domains}), "clusters": clusters}


def angle_lines(record: Record) -> list[str]:
    """The rows of the documentation's table: angles over all seeds, and the numbers of clusters of each seed."""
    lines = []
    for angle, limits in THRESHOLDS.items():
        rows = [row for row in record["angles"] if row["angle"] == angle]
        spans = [
            f"{min(row[kind][0] for row in rows):.0f} to {max(row[kind][1] for row in rows):.0f}"
            for kind in ("inside", "between")
        ]
        counts = [f"{limit}: {', '.join(str(row['clusters'][str(limit)]) for row in rows)}" for limit in limits]
        lines.append(f"| {angle} | {' | '.join(spans)} | {'; '.join(counts)} |")
    return lines


def main() -> None:
    """Measure, or print the rows of the table."""
    if sys.argv[1] == "show":
        print("\n".join(angle_lines(json.loads(PATH.read_text(encoding="utf-8")))))
        return
    data = Path(sys.argv[2])
    write_measured(
        PATH,
        configure(PRESET, "pacfl", seed=SEEDS[0]),
        "cpu",
        lambda: {"angles": [measure_angles(angle, seed, data) for angle in THRESHOLDS for seed in SEEDS]},
    )


if __name__ == "__main__":
    main()
