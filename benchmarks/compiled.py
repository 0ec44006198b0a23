"""The compiled engine on a GPU: is it the reference engine step by step, and how long does a client step take?

    python benchmarks/compiled.py [--out results/performance/compiled.json] [--only check|time] [--rounds 3]
                                  [--seconds 150]

`check`: 20 clients of one batch each, so that a round of local training is one step. After each of 12 steps the loss
and every tensor of the compiled engine are compared with those of the reference engine, in float32 with repeatable
algorithms. Cases that fail are reported, and the others are still run.

`time`: milliseconds per client step in whole rounds of 20 clients, batch 64 and 2 epochs (14 steps of a client with
ResNet-9, 16 with the other network), for the network of the presets mini-* (ResNet-9 of a quarter of the width,
16 x 16) and for a network that a user wrote, by engine, precision and lanes. For each network and method, every engine
first trains one round, in which it captures steps and chooses algorithms. The engines then train the following rounds
in turns, so that the ratios are of rounds side by side; a figure is the median of `--rounds` rounds. `--seconds` limits
the time: no further network or method begins after it, and no further turn once each engine has been timed. Images are
random.
"""

import argparse
import json
import statistics
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.engine.choice import build_engine
from factorized_fl.engine.compiled.engine import CompiledEngine
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import Federation, build_federation

CLIENTS, BATCH, STEPS = 20, 64, 12
RESNET, OWN = NETWORKS = "ResNet-9, 1/4, 16 x 16", "own network, 32 x 32"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU the script can be tried out


class OwnNetwork(nn.Module):
    """Two convolutions with BatchNorm, dropout and two Linear layers, as many users write it."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.hidden = nn.Linear(64 * 8 * 8, 256)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(256, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.hidden(self.body(x).flatten(1)))))


def federation(
    network: str, method: str, engine: str, images: int, dropout: float = 0.0, **settings: Any
) -> Federation:
    """20 clients with so many random training images each, of 10 classes, numbered alike."""
    size = 16 if network == RESNET else 32
    generator = torch.Generator().manual_seed(1)
    pool = torch.randint(0, 256, (CLIENTS * images * 2, 3, size, size), dtype=torch.uint8, generator=generator)
    source = ImageSet("random", pool, torch.arange(len(pool)) % 10, tuple("abcdefghij"))
    table = {"method": method, "clients": CLIENTS, "batch_size": BATCH, "image_size": size, "rounds": 100, **settings}
    table |= {"width": 0.25, "model": "resnet9"} if network == RESNET else {"model": "benchmarks.compiled:OwnNetwork"}
    config = from_table(table)
    scenario = build_scenario([source], ((0.5,) * 3, (0.25,) * 3), clients=CLIENTS, train_share=0.5)

    def factory(example: Tensor, outputs: int) -> nn.Module:
        return OwnNetwork(outputs, dropout)

    given = None if network == RESNET else factory
    return build_federation(config, scenario, torch.device(DEVICE), engine, factory=given)


def check(network: str, method: str, **settings: Any) -> dict[str, Any]:
    """The largest differences over 12 steps: of losses, and of tensors in units of the tensor's size."""
    exact = {"precision": "fp32", "repeatable": True, "epochs": 1, "lr": 1e-3, **settings}
    ours, theirs = (federation(network, method, engine, BATCH, **exact) for engine in ("compiled", "reference"))
    loss = tensors = 0.0
    name_of_worst = ""
    for step in range(1, STEPS + 1):
        for each in (ours, theirs):
            each.clients.receive(step, (), {}, each.engine)  # payloads of a method that sends some are zeros
        found, wanted = (f.clients.train(step, range(CLIENTS), f.engine) for f in (ours, theirs))
        loss = max(loss, *(abs(found[k].loss - wanted[k].loss) / abs(wanted[k].loss) for k in wanted))
        for name, tensor in theirs.clients.tensors.items():
            difference = (ours.clients.tensors[name].double() - tensor.double()).norm()
            relative = float(difference / tensor.double().norm().clamp_min(1e-12))
            if not relative <= tensors:  # also where it is not a number
                tensors, name_of_worst = relative, name
    assert isinstance(ours.engine, CompiledEngine)
    captured = {len(lanes) for lanes in ours.engine.lanes.values()}
    return {
        "network": network, "method": method, "settings": settings, "loss": loss, "tensors": tensors,
        "worst": name_of_worst, "lanes": max(captured), "draws": ours.engine.draws, "last_loss": found[0].loss,
    }  # fmt: skip


class Timed:
    """One engine with its federation, whose rounds of local training are timed."""

    def __init__(self, network: str, method: str, engine: str, lanes: int, precision: str) -> None:
        """Makes the federation and trains the first round, with captures and the choice of algorithms."""
        dropout = 0.5 if network == OWN else 0.0
        images = 480 if network == RESNET else 512
        self.case = {"network": network, "method": method, "engine": engine, "precision": precision, "lanes": lanes}
        self.made = federation(network, method, "reference", images, dropout, precision=precision, epochs=2)
        work = self.made.engine.work  # type: ignore[attr-defined]
        self.engine = {
            "reference": lambda: ReferenceEngine(work),
            "compiled": lambda: CompiledEngine(work, lanes),
            "auto": lambda: build_engine("auto", work),
        }[engine]()
        self.rounds, self.steps_ms, self.loss = 0, list[float](), 0.0
        before = torch.cuda.memory_reserved() if DEVICE == "cuda" else 0
        self.first = self.round()
        self.steps_ms.clear()
        self.reserved = (torch.cuda.memory_reserved() - before) / 2**30 if DEVICE == "cuda" else 0.0

    def round(self) -> float:
        """Trains one round; returns its seconds and keeps the milliseconds per client step."""
        if DEVICE == "cuda":
            torch.backends.cudnn.allow_tf32 = self.case["precision"] != "fp32"
            torch.cuda.synchronize()
        self.rounds += 1
        began = time.perf_counter()
        results = self.made.clients.train(self.rounds, range(CLIENTS), self.engine)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - began
        self.steps_ms.append(1e3 * spent / sum(result.steps for result in results.values()))
        self.loss = statistics.fmean(result.loss for result in results.values())
        return spent

    def row(self) -> dict[str, Any]:
        """The result: the median of the timed rounds, the seconds of the first, and memory added by this engine."""
        return {
            **self.case, "runs_on": self.engine.describe()["engine"], "step_ms": statistics.median(self.steps_ms),
            "each_ms": self.steps_ms, "first_round_s": self.first, "added_gib": self.reserved, "loss": self.loss,
        }  # fmt: skip


CHECKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (RESNET, "fedavg", {}),
    (RESNET, "factorized-peers", {}),
    (RESNET, "per-fedavg", {}),
    (RESNET, "scaffold", {}),
    (RESNET, "ditto", {}),
    (RESNET, "fedavg", {"optimizer": "adamw"}),
    (OWN, "factorized-fl-beta", {}),
    (OWN, "fedavg", {"dropout": 0.5}),
    (OWN, "fedrep", {"augment": "none", "schedule": "cosine", "ema": 0.9}),
)
TIMES = (
    ("reference", 0, "tf32"), ("reference", 0, "fp32"), ("compiled", 1, "bf16"), ("compiled", 2, "bf16"),
    ("compiled", 4, "bf16"), ("compiled", 8, "bf16"), ("compiled", 4, "tf32"), ("compiled", 4, "fp32"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/performance/compiled.json"))
    parser.add_argument("--only", choices=("check", "time"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=150.0)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    result: dict[str, Any] = {
        "checks": [],
        "times": [],
        "failures": [],
        "left_out": [],
        "environment": describe_environment(1, DEVICE),
    }

    def attempt(kind: str, function: Any, *args: Any, **settings: Any) -> Any:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = function(*args, **settings)
            except Exception:  # a case that fails must not cost the others the GPU
                found = None
                print(f"FAILED {args} {settings}\n{traceback.format_exc()}", flush=True)
                result["failures"].append({"case": [*map(str, args), settings], "error": traceback.format_exc()})
        said = sorted({str(w.message).partition("\n")[0] for w in warned if "factorized_fl" in w.filename})
        for line in said:
            print(f"  warning: {line}")
        if isinstance(found, Timed):
            found.case |= {"warnings": said} if said else {}
        elif found:
            result[kind].append(found | ({"warnings": said} if said else {}))
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        return found

    if arguments.only != "time":
        print(f"{'check':24} {'method':20} loss     tensors  lanes")
        for network, method, settings in CHECKS:
            if row := attempt("checks", check, network, method, **settings):
                differences = f"{row['loss']:.1e}  {row['tensors']:.1e}  {row['lanes']}"
                print(f"{network:24} {method:20} {differences}  {settings or ''} {row['worst']}", flush=True)
    if arguments.only != "check":
        print(f"\n{'time':24} {'method':20} {'engine':20} lanes  ms/step  ratio  first round s  added GiB")
        for network, method in [
            (network, method) for method in ("factorized-fl-beta", "fedavg") for network in NETWORKS
        ]:
            if time.perf_counter() - began > arguments.seconds:
                result["left_out"].append([network, method])
                print(f"{network:24} {method:20} left out: more than {arguments.seconds:.0f} s have passed")
                continue
            cases = [*TIMES, ("auto", 0, "bf16")] if network == RESNET else TIMES
            timed = [found for case in cases if (found := attempt("", Timed, network, method, *case))]
            for turn in range(arguments.rounds):
                if not turn or time.perf_counter() - began < arguments.seconds:
                    for each in timed:
                        each.round()
            rows = [each.row() for each in timed]
            for row in rows:
                row["ratio"] = row["step_ms"] / rows[0]["step_ms"]
                print(
                    f"{network:24} {method:20} {row['runs_on'] + ', ' + row['precision']:20} {row['lanes']:5} "
                    f"{row['step_ms']:8.3f} {row['ratio']:6.2f} {row['first_round_s']:14.1f} {row['added_gib']:10.2f}",
                    flush=True,
                )
            result["times"] += rows
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
