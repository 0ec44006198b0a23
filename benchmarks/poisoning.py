"""Damage that one lying client of five does to the others, with and without robust aggregation.

    python -m benchmarks.poisoning --data DIR --out results/privacy/robust.json

The last client trains honestly and then changes the tensors that it sends: it flips their sign, scales them ninefold,
or adds noise as large as they are. The mean accuracy of the other four clients is compared. Rows that the file has are
not measured again.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch

from factorized_fl.config import from_table
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.views import Tensors
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.scenario import build_scenario_of

TABLE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "cnn",
    "clients": 5,
    "images_per_client": 200,
    "test_images": 300,
    "rounds": 4,
    "epochs": 2,
    "batch_size": 32,
    "lr": 0.02,
    "augment": "none",
}
LIAR = 4
ATTACKS = ("none", "sign flip", "ninefold", "noise")
ROBUST = ("none", "clip", "median", "trim")


def lie(attack: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The tensor that the lying client sends in place of its own."""
    if attack == "sign flip":
        return -tensor
    if attack == "ninefold":
        return 9 * tensor
    return tensor + tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=generator)


def poison(federation: Federation, attack: str, round_number: int) -> None:
    """Changes what the server last received from the lying client."""
    generator = torch_rng(federation.config.seed, "poison", round_number)
    stack: Tensors = federation.server.stack  # type: ignore[union-attr]
    for stacked in stack.values():
        stacked[LIAR] = lie(attack, stacked[LIAR], generator)


def accuracy(data: Path, method: str, attack: str, robust: str, seed: int) -> dict[str, float]:
    """The others' mean accuracy after the last round, and the liar's mean influence on them with clipping."""
    config = from_table({**TABLE, "method": method, "robust": robust, "seed": seed})
    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"))
    influence = []
    for round_number in range(1, config.rounds + 1):
        records, mixing = run_round(federation, round_number)
        if mixing is not None and mixing.influence is not None:
            influence.append(float(mixing.influence[:LIAR, LIAR].mean()))
        if attack != "none":
            poison(federation, attack, round_number)
    found = {"accuracy": statistics.fmean(record["accuracy"] for record in records if record["client"] != LIAR)}
    return found | ({"influence": statistics.fmean(influence)} if influence else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "factorized-peers"])
    given = parser.parse_args()
    settings = {"settings": TABLE, "seeds": given.seeds}
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows = known.pop("rows", [])
    if rows and known != settings:
        parser.error(f"{given.out} has rows of other settings or seeds")
    done = [(row["method"], row["robust"], row["attack"]) for row in rows]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for method, robust, attack in product(given.methods, ROBUST, ATTACKS):
        if (method, robust, attack) in done:
            continue
        each = [accuracy(given.data, method, attack, robust, seed) for seed in given.seeds]
        mean = {name: statistics.fmean(found[name] for found in each) for name in each[0]}
        accuracies = [found["accuracy"] for found in each]
        rows.append({"method": method, "robust": robust, "attack": attack, **mean, "each": accuracies})
        print(json.dumps(rows[-1]), flush=True)
        given.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
