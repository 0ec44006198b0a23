"""A federation over a long line: three sites behind 200 ms and 5% loss, and the seconds of a round besides training.

    python -m benchmarks.network_wan [--only "10 kB"] [--out results/network/wan.json]

`--only TEXT` measures the cases with names that begin with TEXT. Other cases of the file stay if they have the same
commit.

The coordinator is in one network namespace, the sites in another, with `benchmarks.slow_link` between them: half of the
delay each way, and each packet lost with the same probability in either direction. All three sites share the line, but
it has no limit of bandwidth besides what TCP makes of the losses. Needs Linux and root.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads PyTorch

from benchmarks.slow_link import slow_link
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from tests.silo.parties import NAMES
from tests.silo.processes import Party, ffl, write_hospitals, write_sites

SMALL = {"method": "factorized-fl", "model": "cnn", "width": 1.0, "epochs": 2, "rounds": 10}
LARGE = {"method": "factorized-fl-beta", "model": "resnet9", "width": 0.5, "epochs": 1, "rounds": 3}
CASES = {
    "10 kB, no delay, no loss": (SMALL, 0.0, 0.0),
    "10 kB, 200 ms, no loss": (SMALL, 0.2, 0.0),
    "10 kB, 200 ms, 5% loss": (SMALL, 0.2, 0.05),
    "2.8 MB, 200 ms, no loss": (LARGE, 0.2, 0.0),
    "2.8 MB, 200 ms, 5% loss": (LARGE, 0.2, 0.05),
}


def measure(root: Path, settings: dict[str, object], round_trip: float, loss: float) -> dict[str, object]:
    data = write_hospitals(root / "data")
    with slow_link(round_trip, loss) as link:
        terms = {"deadline": 3000.0, "address": link.near_address, **settings}
        ffl("federation", "new", write_sites(root / "sites.toml", **terms), "--out", root / "kits")
        coordinator = Party(root / "kits" / "coordinator", before=link.inside(link.near))
        parties = [coordinator]
        for name in NAMES:
            choices = ["--data", data / name, "--device", "cpu", "--no-alone"]
            parties.append(Party(root / "kits" / name, *choices, before=link.inside(link.far)))
        began = time.monotonic()
        try:
            for party in parties:
                party.start()
            for party in parties:
                assert party.wait(3000) == 0, party.console
        finally:
            for party in parties:
                party.end()
        whole = time.monotonic() - began
    timing, records = (getattr(RunDirectory(coordinator.kit.run), name)() for name in ("timing", "metrics"))
    beside = [line["seconds"] - line["slowest_site"] for line in timing]
    return {
        "rounds": len(timing),
        "all_sites_in_each_round": len(records) == len(timing) * len(NAMES) and all(r["steps"] for r in records),
        "bytes_up_per_site_and_round": round(statistics.fmean(r["up_bytes"] for r in records)),
        "bytes_down_per_site_and_round": round(statistics.fmean(r["down_bytes"] for r in records)),
        "seconds_per_round_not_training": {
            "median": round(statistics.median(beside), 2),
            "largest": round(max(beside), 2),
        },
        "seconds_from_start_to_models": round(whole, 1),
        "packets_carried": link.carried,
        "packets_lost": link.lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("results/network/wan.json"))
    options = parser.parse_args()
    environment = {**describe_environment(1, "cpu"), "cores": os.cpu_count()}
    before = json.loads(options.out.read_text()) if options.out.exists() else {}
    known = before if before.get("environment", {}).get("commit") == environment["commit"] else {}
    found: dict[str, object] = {name: known[name] for name in CASES if name in known}
    for name, case in CASES.items():
        if name.startswith(options.only):
            with tempfile.TemporaryDirectory() as folder:
                found[name] = {**measure(Path(folder), *case), "load": round(os.getloadavg()[0], 1)}
            print(name, found[name], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**found, "environment": environment}, indent=2) + "\n")


if __name__ == "__main__":
    main()
