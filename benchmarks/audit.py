"""Attacks on what each party sees, by method, without and with differential privacy: results/privacy/audit.json.

Usage: python -m benchmarks.audit OUT [--shadows 12] [--method NAME] [--epsilon NUMBER]. Twelve clients of the three
kinds of images of the demo, 40 each, and a network without BatchNorm, which differential privacy needs. All runs have
the same network, seed and rounds; a run with differential privacy has its own learning rate, as the noise asks for
fewer and larger steps. Finished runs and audits in OUT are not repeated. With --method or --epsilon only these runs
are attacked. The results are written when all audits are in OUT.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import factorized_fl as ffl
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.reading import read_run

METHODS = ("fedavg", "factorized-fl-beta", "factorized-fl", "factorized-peers")
EPSILONS = (0.0, 8.0)  # 0: no differential privacy
SETTINGS = {
    "model": "benchmarks.audit:network",
    "images_per_client": 40,
    "test_images": 120,
    "rounds": 4,
    "epochs": 10,
    "batch_size": 10,
    "augment": "none",
    "recalibrate": False,
    "seed": 1,
}
RATE, PRIVATE = 0.05, {"lr": 0.3, "privacy.delta": 1e-3, "privacy.clip": 1.0}
RESULT = Path("results/privacy/audit.json")


def network(example: torch.Tensor, outputs: int) -> nn.Module:
    """Two convolutions with GroupNorm, and a classifier."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(example.shape[1], 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(16, 32, 3), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 25, outputs),
    )


def folder_of(out: Path, method: str, epsilon: float) -> Path:
    return out / f"{method}-epsilon-{epsilon:g}"


def attack(folder: Path, method: str, epsilon: float, shadows: int) -> None:
    """Run a method and audit the run, unless that is done."""
    own = {**PRIVATE, "privacy.epsilon": epsilon} if epsilon else {"lr": RATE}
    if not (folder / "audit.json").exists():
        run = ffl.run("demo", folder, method=method, resume=True, progress=False, **SETTINGS, **own)
        ffl.audit(run, shadows=shadows)


def audited(folder: Path, method: str, epsilon: float) -> dict[str, Any]:
    """Return the accuracy of a run and the findings of its audit."""
    content = json.loads((folder / "audit.json").read_text())
    found = read_run(folder, strict=True)
    return {
        "method": method,
        "epsilon": epsilon or None,
        "accuracy": sum(result["accuracy"] for result in found.final) / len(found.final),
        "findings": content["findings"],
        "commit": content["environment"]["commit"],
    }


def main() -> None:
    """Run what is missing and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shadows", type=int, default=12)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--epsilon", type=float, choices=EPSILONS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    every = [(method, epsilon, folder_of(given.out, method, epsilon)) for epsilon in EPSILONS for method in METHODS]
    for method, epsilon, folder in every:
        if given.method in (None, method) and given.epsilon in (None, epsilon):
            attack(folder, method, epsilon, given.shadows)
            print(f"{method} at epsilon {epsilon:g} is done", flush=True)
    if not all((folder / "audit.json").exists() for *_, folder in every):
        return
    content = {
        "settings": SETTINGS,
        "lr": RATE,
        "private": PRIVATE,
        "shadows": given.shadows,
        "runs": [audited(folder, method, epsilon) for method, epsilon, folder in every],
        "environment": describe_environment(SETTINGS["seed"], "cpu"),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
