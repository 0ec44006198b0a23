"""GPU memory and time over the number of clients: 480 images each, Factorized-FL beta, the paper's ResNet-9.

    python benchmarks/many_clients.py [--clients 20,100] [--out results/performance/many-clients.json]

The images are random and have the shape of CIFAR-10.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round

IMAGES = 60_000
ROUNDS = 3


def measure(clients: int) -> dict:
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    source = ImageSet("random", images, torch.arange(IMAGES) % 10, tuple("abcdefghij"))
    config = from_table({"method": "factorized-fl-beta", "permuted": True, "clients": clients, "rounds": ROUNDS})
    normal = ((0.5,) * 3, (0.25,) * 3)
    scenario = build_scenario([source], normal, clients=clients, permuted=True, images_per_client=480)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    federation = build_federation(config, scenario, torch.device("cuda"))
    for round_number in range(1, ROUNDS + 1):
        began = time.perf_counter()
        records, _ = run_round(federation, round_number)
        seconds = time.perf_counter() - began
    assert len(records) == clients
    return {
        "clients": clients,
        "engine": type(federation.engine).__name__,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "seconds_per_round": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="20,100")
    parser.add_argument("--out", type=Path, default=Path("results/performance/many-clients.json"))
    arguments = parser.parse_args()
    rows = []
    for clients in map(int, arguments.clients.split(",")):
        rows.append(measure(clients))
        print("{clients} clients: peak {peak_gib:.2f} GiB, {seconds_per_round:.2f} s per round".format(**rows[-1]))
    first, last = rows[0], rows[-1]
    growth = (last["peak_gib"] - first["peak_gib"]) * 1024 / max(1, last["clients"] - first["clients"])
    print(f"growth: {growth:.1f} MiB per client")
    result = {"all": rows, "growth_mib_per_client": growth, "environment": describe_environment(1, "cuda")}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
