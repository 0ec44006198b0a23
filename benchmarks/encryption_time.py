"""Seconds of a round of Factorized-FL with and without encryption, in turns: results/privacy/encryption-time.json.

    python -m benchmarks.encryption_time [--device cuda] [--images 32] [--rounds 8] [--seconds 200] [--threads 1]

Twenty clients train the paper's network in its scenario (labels permuted) with its options, on random images of the
size of CIFAR-10's: seconds do not depend on what they show. One process holds a plain and an encrypted federation and
runs each round of both, in changing order. The first round, in which nothing is mixed, is left out. No round begins
after `--seconds`. `--images` bounds the images of a client; 0 takes all of 60,000, as the paper does. Each device has
its entry in the file. Seconds of the process's own work on a CPU depend less on other programs than those of a clock.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.data.sources import normalisation
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round

TABLE: dict[str, Any] = {"dataset": "cifar10", "permuted": True, "method": "factorized-fl", "clients": 20}
STATISTICS = {"match": "statistics"}
FEW = {"epochs": 1, "batch_size": 32, "test_images": 20}  # with few images, a round that a CPU can repeat
RESULT = Path("results/privacy/encryption-time.json")


def random_images(seed: int = 0) -> ImageSet:
    """Return 60,000 random images of ten classes, of the size of CIFAR-10's."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return ImageSet("random", images, torch.arange(60_000) % 10, tuple("0123456789"))


def build(protect: str, images: int, device: str) -> Federation:
    config = from_table({**TABLE, "options": STATISTICS, "protect": protect, **(FEW if images else {})})
    scenario = build_scenario(
        [random_images()],
        normalisation(config.dataset, 3),
        clients=config.clients,
        permuted=True,
        images_per_client=images,
        test_images=config.test_images,
        seed=config.seed,
    )
    return build_federation(config, scenario, torch.device(device))


def measure(images: int, rounds: int, most: float, device: str) -> dict[str, Any]:
    """Run the rounds of both federations in turns; return their seconds, and those of each part of encryption."""
    federations = {protect: build(protect, images, device) for protect in ("none", "encrypt")}
    seconds: dict[str, list[float]] = {protect: [] for protect in federations}
    cpu: dict[str, list[float]] = {protect: [] for protect in federations}
    parts: list[dict[str, float]] = []
    end = time.perf_counter() + most
    for round_number in range(1, rounds + 2):
        if round_number > 2 and time.perf_counter() > end:
            break
        turns = list(federations) if round_number % 2 else list(reversed(federations))
        for protect in turns:
            began, worked = time.perf_counter(), time.process_time()
            run_round(federations[protect], round_number)
            seconds[protect].append(time.perf_counter() - began)
            cpu[protect].append(time.process_time() - worked)
            spent = federations[protect].encryption_seconds()
            if protect == "encrypt" and round_number > 1:
                parts.append(spent)
            print(
                round_number, protect, f"{seconds[protect][-1]:.3f} s, CPU {cpu[protect][-1]:.3f} s", spent, flush=True
            )
    plain, encrypted = (seconds[protect][1:] for protect in ("none", "encrypt"))
    shares = [sum(part.values()) / (whole - sum(part.values())) for part, whole in zip(parts, encrypted, strict=True)]
    config = federations["encrypt"].config
    return {
        "images_per_client": len(federations["none"].scenario.clients[0].train),
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seconds_plain": plain,
        "seconds_encrypted": encrypted,
        "median_plain": statistics.median(plain),
        "median_encrypted": statistics.median(encrypted),
        "ratio_of_medians": statistics.median(encrypted) / statistics.median(plain),
        "cpu_seconds_plain": cpu["none"][1:],
        "cpu_seconds_encrypted": cpu["encrypt"][1:],
        "ratio_of_cpu_medians": statistics.median(cpu["encrypt"][1:]) / statistics.median(cpu["none"][1:]),
        "seconds_by_part": {name: statistics.median(part[name] for part in parts) for name in parts[0]},
        "encryption_over_rest_of_round": statistics.median(shares),
        "environment": describe_environment(config.seed, device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found[given.device] = measure(given.images, given.rounds, given.seconds, given.device) | {"threads": given.threads}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found[given.device], indent=1))


if __name__ == "__main__":
    main()
