"""The cost of the round loop over a bare PyTorch loop with the same network of the user, data, steps and tests.

Usage: python benchmarks/own_overhead.py [OUT]; writes results/performance/own-overhead.json by default. Both loops run
alternately in one process on one thread; CPU time is compared, so that other processes do not count.
"""

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import factorized_fl as ffl
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.own import own_config, own_run_scenario
from factorized_fl.simulate.rounds import run_round

CLIENTS, TRAIN, TEST, BATCH = 2, 128, 64, 32
REPEATS = {1: 17, 3: 9}  # by the number of epochs: of 4 and of 12 steps of each client in a round


class Net(nn.Module):
    def __init__(self, example: Tensor, outputs: int, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def bare(
    models: list[nn.Module], data: list[tuple[Tensor, ...]], build: type[torch.optim.Optimizer], epochs: int
) -> None:
    """One round of every client's epochs, a mean of all weights, and tests."""
    for model, (x, y, xt, yt) in zip(models, data, strict=True):
        optimizer = build(model.parameters(), lr=0.01)
        model.train()
        for _ in range(epochs):
            for chosen in torch.randperm(len(x)).split(BATCH):
                loss = cross_entropy(model(x[chosen]), y[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            (model(xt).argmax(1) == yt).sum().item()
    states = [model.state_dict() for model in models]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    for model in models:
        model.load_state_dict(mean)


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/performance/own-overhead.json")
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(CLIENTS):
        x, xt = (torch.randn(count, 3, 32, 32, generator=generator) for count in (TRAIN, TEST))
        data.append((x, torch.arange(TRAIN) % 5, xt, torch.arange(TEST) % 5))
    clients = [ffl.ClientData(x, y, test=(xt, yt), classes=list("abcde")) for x, y, xt, yt in data]
    report = {}
    optimizers = (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW))
    for epochs, (name, build) in itertools.product(REPEATS, optimizers):
        settings = {"model": "benchmark:Net", "optimizer": name, "batch_size": BATCH, "epochs": epochs}
        config = own_config(clients, "fedavg", {**settings, "rounds": REPEATS[epochs] + 1})
        federation = build_federation(
            config, own_run_scenario(clients, config), torch.device("cpu"), "reference", factory=Net
        )
        models: list[nn.Module] = [Net(data[0][0][:1], 5) for _ in data]
        ours, theirs = [], []
        for round_number in range(1, REPEATS[epochs] + 1):
            began = time.process_time()
            run_round(federation, round_number)
            middle = time.process_time()
            bare(models, data, build, epochs)
            ours.append(middle - began)
            theirs.append(time.process_time() - middle)
        ratios = [a / b for a, b in zip(ours[2:], theirs[2:], strict=True)]  # the first two warm up
        steps = CLIENTS * epochs * TRAIN // BATCH
        report[f"{name}, {steps // CLIENTS} steps"] = {
            "bare_ms_per_step": round(1000 * statistics.median(theirs[2:]) / steps, 2),
            "ratio_of_fastest": round(min(ours[2:]) / min(theirs[2:]), 4),  # the least disturbed round of each loop
            "ratio": round(statistics.median(ours[2:]) / statistics.median(theirs[2:]), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
        }
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
