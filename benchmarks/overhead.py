"""Overhead of the round loop over a bare PyTorch loop with the same clients and the same numbers of batches.

Both train and test in one process, round by round in turn; the result is the ratio of their total times.

    python benchmarks/overhead.py [--rounds 3] [--width 1] [--out results/performance/overhead.json]
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import nn

from factorized_fl.api import configure
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.scenario import build_scenario_of


class Bare:
    """FedAvg written by hand: a module and an optimiser for each client, without checkpoints and records."""

    def __init__(self, federation: Federation) -> None:
        self.config, self.scenario = federation.config, federation.scenario
        template = next(iter(federation.engine.models.values()))
        self.models = [copy.deepcopy(template) for _ in self.scenario.clients]
        self.optimisers = [
            torch.optim.SGD(m.parameters(), self.config.lr, self.config.momentum, weight_decay=self.config.weight_decay)
            for m in self.models
        ]
        self.shared = federation.shared

    def images(self, chosen: torch.Tensor) -> torch.Tensor:
        pixels = (self.scenario.images[chosen].float() / 255 - 0.5) / 0.25
        return pixels.contiguous(memory_format=torch.channels_last)

    def round(self, round_number: int) -> None:
        if round_number > 1:
            self.average()
        for client, model, optimiser in zip(self.scenario.clients, self.models, self.optimisers, strict=True):
            self.train(client, model, optimiser)
        for client, model in zip(self.scenario.clients, self.models, strict=True):
            self.test(client, model)

    def train(self, client, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        size = self.config.batch_size
        model.train()
        for _ in range(self.config.epochs):
            order = client.train[torch.randperm(len(client.train))]
            for first in range(0, len(order) - size + 1, size):
                chosen = order[first : first + size]
                labels = client.labelling[self.scenario.labels[chosen]]
                loss = nn.functional.cross_entropy(model(self.images(chosen)), labels)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    @torch.no_grad()
    def test(self, client, model: nn.Module) -> float:
        model.eval()
        right = 0
        for chosen in client.test.split(500):
            labels = client.labelling[self.scenario.labels[chosen]]
            right += int((model(self.images(chosen)).argmax(1) == labels).sum())
        return right / len(client.test)

    @torch.no_grad()
    def average(self) -> None:
        states = [model.state_dict() for model in self.models]
        sizes = self.scenario.sizes / self.scenario.sizes.sum()
        for name in self.shared:
            mean = sum(float(share) * state[name] for share, state in zip(sizes, states, strict=True))
            for state in states:
                state[name].copy_(mean)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="resnet9")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("results/performance/overhead.json"))
    arguments = parser.parse_args()
    config = configure(
        "digits-permuted-iid",
        "fedavg",
        model=arguments.model,
        width=arguments.width,
        batch_size=32,
        images_per_client=64,
        clients=6,
        rounds=arguments.rounds + 1,
    )
    federation = build_federation(config, build_scenario_of(config), torch.device("cpu"))
    bare = Bare(federation)
    directory = RunDirectory(arguments.out.parent / ".overhead-run")
    (directory.path / "mixing").mkdir(parents=True, exist_ok=True)
    ours, theirs = [], []
    for round_number in range(1, arguments.rounds + 2):
        for name in ("ours", "theirs") if round_number % 2 else ("theirs", "ours"):
            began = time.perf_counter()
            if name == "ours":
                records, mixing = run_round(federation, round_number)
                directory.append("metrics.jsonl", records)
                if mixing:
                    directory.save_mixing(round_number, mixing)
            else:
                bare.round(round_number)
            (ours if name == "ours" else theirs).append(time.perf_counter() - began)
    ours, theirs = ours[1:], theirs[1:]  # the first round warms up
    ratio = sum(ours) / sum(theirs)
    result = {
        "ratio": ratio,
        "ours_s": ours,
        "bare_s": theirs,
        "model": f"{config.model} x {config.width:g}",
        "environment": describe_environment(config.seed, "cpu"),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    for path in sorted(directory.path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    directory.path.rmdir()
    print(f"round loop / bare PyTorch loop: {ratio:.3f} ({sum(ours):.1f} s / {sum(theirs):.1f} s)")


if __name__ == "__main__":
    main()
