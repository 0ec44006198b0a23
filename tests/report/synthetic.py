"""Run directories made by hand, so that every number of a report can be worked out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tests.tiny import tiny_config

DOMAINS = ("bars", "lines")


def write_run(
    path: Path,
    method: str = "factorized-fl",
    *,
    clients: int = 4,
    rounds: int = 3,
    correct: Sequence[int] | None = None,
    total: int = 100,
    seed: int = 1,
    classes: Sequence[str] = ("one", "two"),
    domains: Sequence[str] = DOMAINS,
    matrices: bool = True,
    complete: bool = True,
    **settings: Any,
) -> Path:
    """A run in which client k gets `correct[k]` of `total` images right in the end, and half as many before.

    Up are 1000 bytes a round and client (u 600, matching vector 300), down 500 from the second round on.
    """
    path.mkdir(parents=True)
    correct = list(correct or [50] * clients)
    config = tiny_config(method, clients=clients, rounds=rounds, seed=seed, **settings)
    (path / "config.toml").write_text(config.to_toml())
    (path / "environment.json").write_text(json.dumps({"python": "3.12", "packages": {"torch": "2.11"}}))
    share = clients // len(domains) or 1
    names = [domains[min(k // share, len(domains) - 1)] for k in range(clients)]
    described = [
        {"name": f"client {k + 1}", "domain": names[k], "classes": list(classes), "train": 10, "test": total}
        for k in range(clients)
    ]
    (path / "clients.json").write_text(json.dumps(described))
    (path / "metrics.jsonl").write_text("")
    for round_number in range(1, rounds + 1):
        so_far = [c if round_number == rounds else c // 2 for c in correct]
        add_round(path, round_number, so_far, total, names, method, matrices)
    size = len(classes)
    confusion = [[[c, total // 2 - c // 2] + [0] * (size - 2)] + [[0] * size] * (size - 1) for c in correct]
    if complete:
        layers = {"mu_layers": ["conv", "head"]} if matrices else {}
        (path / "analysis.json").write_text(json.dumps({"confusion": confusion, **layers}))
        finals = [
            {"client": k, "domain": names[k], "accuracy": c / total, "correct": c, "total": total, "round": rounds}
            for k, c in enumerate(correct)
        ]
        (path / "summary.json").write_text(json.dumps({"method": method, "clients": finals, "up_bytes": 1}))
    return path


def add_round(
    path: Path,
    round_number: int,
    correct: Sequence[int],
    total: int = 100,
    domains: Sequence[str] = ("bars", "bars", "lines", "lines"),
    method: str = "factorized-fl",
    matrices: bool = True,
) -> None:
    """One more round, as a run leaves it: matrices first, metrics last."""
    count = len(correct)
    quiet = method == "stand-alone"
    if matrices and not quiet:
        for kind in ("mixing", "traces"):
            (path / kind).mkdir(exist_ok=True)
        if round_number > 1:
            # Everybody keeps 0.7 and gets 0.3 from the next client, in even rounds, or the one after, in odd ones.
            matrix = np.eye(count) * 0.7 + np.roll(np.eye(count), 1 + round_number % 2, axis=1) * 0.3
            same = np.equal.outer(np.array(domains), np.array(domains))
            tensors = {"matrix": matrix, "similarity": np.where(same, 0.5, -0.25)}
            safetensors.numpy.save_file(tensors, path / "mixing" / f"round-{round_number:04d}.safetensors")
        ones = np.ones((count, count), dtype=np.float32)
        kept = np.tile(np.array([[1.0, 0.5 / round_number]], dtype=np.float32), (count, 1))
        traces = {"cosine.u": ones, "cosine.v": ones * 0.25, "mu": kept}
        safetensors.numpy.save_file(traces, path / "traces" / f"round-{round_number:04d}.safetensors")
    lines = [
        {
            "round": round_number,
            "client": k,
            "domain": domains[k],
            "accuracy": right / total,
            "correct": right,
            "total": total,
            "loss": 1.0,
            "train_loss": 1.0,
            "steps": 1,
            "up_bytes": 0 if quiet else 1000,
            "down_bytes": 0 if quiet or round_number == 1 else 500,
            "up_formula": 0 if quiet else 200,
            "down_formula": 0 if quiet else 100,
            "up_roles": {} if quiet else {"u": 600, "fingerprint": 300},
            "down_roles": {} if quiet or round_number == 1 else {"u": 450},
        }
        for k, right in enumerate(correct)
    ]
    with (path / "timing.jsonl").open("a") as file:
        file.write(json.dumps({"round": round_number, "seconds": 2.0}) + "\n")
    with (path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
