"""Overhead of the network: three sites as processes on loopback with mutual TLS, and the same work in one process.

    python -m benchmarks.network_overhead [OUT.json]

The overhead of a round is its time at the coordinator less the working time of its slowest site. The ratio compares
the time of all rounds with that of a run in one process, in which clients train one after the other. Every process has
one thread: with two threads each, three sites on two cores would slow each other down, unlike sites on separate
machines.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads PyTorch

from factorized_fl import api
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from tests.silo.parties import NAMES
from tests.silo.processes import Party, ffl, write_hospitals, write_sites

CASES = {
    "Factorized-FL, cnn": {"method": "factorized-fl", "model": "cnn", "width": 1.0, "epochs": 10},
    "Factorized-FL beta, resnet9 of half width": {"method": "factorized-fl-beta", "model": "resnet9", "epochs": 1},
}


def measure(root: Path, settings: dict[str, object]) -> dict[str, object]:
    data = write_hospitals(root / "data")
    sites = write_sites(root / "sites.toml", **{"rounds": 6, "deadline": 600.0, **settings})
    ffl("federation", "new", sites, "--out", root / "kits")
    coordinator = Party(root / "kits" / "coordinator")
    parties = [coordinator]
    parties += [Party(root / "kits" / name, "--data", data / name, "--device", "cpu", "--no-alone") for name in NAMES]
    began = time.monotonic()
    try:
        for party in parties:
            party.start()
        for party in parties:
            assert party.wait(900) == 0, party.console
    finally:
        for party in parties:
            party.end()
    whole = time.monotonic() - began
    timing = RunDirectory(coordinator.kit.run).timing()
    records = RunDirectory(coordinator.kit.run).metrics()
    one = api.run(coordinator.kit.config, root / "one", data=data, device="cpu").timing()
    beside = [line["seconds"] - line["slowest_site"] for line in timing]
    rounds, alone = sum(line["seconds"] for line in timing), sum(line["seconds"] for line in one)
    return {
        "rounds": len(timing),
        "bytes_up_per_site_and_round": round(statistics.fmean(r["up_bytes"] for r in records)),
        "seconds_of_all_rounds": round(rounds, 2),
        "seconds_in_one_process": round(alone, 2),
        "ratio": round(rounds / alone, 2),
        "seconds_per_round_not_training": {
            "mean": round(statistics.fmean(beside), 3),
            "largest": round(max(beside), 3),
        },
        "seconds_from_start_to_models": round(whole, 1),
    }


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/network/overhead.json")
    found: dict[str, object] = {}
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(Path(folder), settings)
        print(name, found[name], flush=True)
    found["environment"] = {**describe_environment(1, "cpu"), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
