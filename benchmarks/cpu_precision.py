"""bf16 against float32 on a CPU: the time of local training and of tests, and where they end.

    python benchmarks/cpu_precision.py [--threads 1] [--quick] [--out results/performance/cpu-precision.json]

The runs of both precisions take turns, client by client, on the same clients; the ratio is that of the processor time,
which other work on the machine disturbs little. Networks: the paper's ResNet-9 on 32 x 32, dense and factorised; the
ResNet-9 of the presets mini-* (a quarter of the width, 16 x 16); the small `cnn`. Images are random, so accuracies say
nothing; `loss` is the mean training loss of the last round.
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
from factorized_fl.engine.threads import operations
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import build_federation

CASES: dict[str, dict[str, Any]] = {
    "ResNet-9, dense": {"model": "resnet9", "image_size": 32, "method": "fedavg"},
    "ResNet-9, factorised": {"model": "resnet9", "image_size": 32, "method": "factorized-fl-beta"},
    "ResNet-9, 1/4, 16 x 16, dense": {"model": "resnet9", "width": 0.25, "image_size": 16, "method": "fedavg"},
    "ResNet-9, 1/4, 16 x 16, factorised": {
        "model": "resnet9", "width": 0.25, "image_size": 16, "method": "factorized-fl-beta",
    },
    "cnn, 32 x 32": {"model": "cnn", "image_size": 32, "method": "fedavg"},
    "cnn, 1/4, 8 x 8": {"model": "cnn", "width": 0.25, "image_size": 8, "method": "fedavg"},
}  # fmt: skip
BATCH, STEPS, CLIENTS = 64, 2, 2


def measure(case: dict[str, Any], rounds: int) -> dict[str, Any]:
    size = case["image_size"]
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (4 * CLIENTS * BATCH * STEPS, 3, size, size), dtype=torch.uint8, generator=generator)
    source = ImageSet("random", images, torch.arange(len(images)) % 10, tuple("abcdefghij"))
    scenario = build_scenario(
        [source], ((0.5,) * 3, (0.25,) * 3), clients=CLIENTS, images_per_client=BATCH * STEPS, test_images=256
    )
    made = {}
    for precision in ("fp32", "bf16"):
        config = from_table({**case, "clients": CLIENTS, "batch_size": BATCH, "epochs": 1, "cpu_precision": precision})
        made[precision] = build_federation(config, scenario, torch.device("cpu"), "reference")
    training: dict[str, list[float]] = {name: [] for name in made}
    testing: dict[str, list[float]] = {name: [] for name in made}
    losses: dict[str, float] = {}
    for round_number in range(1, rounds + 2):  # the first one warms up
        for k in range(CLIENTS):
            for name, federation in made.items():
                began = time.process_time()
                found = federation.clients.train(round_number, [k], federation.engine)
                trained = time.process_time()
                federation.engine.evaluate(round_number, [k], federation.clients)
                if round_number > 1:
                    training[name].append((trained - began) / STEPS)
                    testing[name].append(time.process_time() - trained)
                losses[name] = found[k].loss
    (model,) = made["fp32"].engine.models.values()  # type: ignore[attr-defined]
    times = {name: statistics.median(all_of) for name, all_of in training.items()}
    tests = {name: statistics.median(all_of) for name, all_of in testing.items()}
    return {
        "step_seconds": times, "test_seconds": tests, "loss": losses, "step_ratio": times["bf16"] / times["fp32"],
        "test_ratio": tests["bf16"] / tests["fp32"],
        "forward_operations": BATCH * operations(model, torch.zeros(1, 3, size, size)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one measured round instead of four")
    parser.add_argument("--out", type=Path, default=Path("results/performance/cpu-precision.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = {}
    for name, case in CASES.items():
        row = rows[name] = measure(case, 1 if arguments.quick else 4)
        times = row["step_seconds"]
        amount = f"{row['forward_operations'] / 1e9:.2f} G operations"
        print(
            f"{name:36} {1e3 * times['fp32']:8.1f} ms a step in fp32, {1e3 * times['bf16']:8.1f} in bf16: "
            f"{row['step_ratio']:.2f}; tests {row['test_ratio']:.2f}; {amount}",
            flush=True,
        )
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"batch": BATCH, "cases": rows, "environment": describe_environment(1, "cpu")}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
