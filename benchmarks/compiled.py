"""The compiled engine on a GPU: is it the reference engine step by step, and how long does a client step take?

    python benchmarks/compiled.py [--out results/performance/compiled.json] [--only check|time] [--rounds 5]

`check`: 20 clients of one batch each, so that a round of local training is one step. After each of 12 steps the loss
and every tensor of the compiled engine are compared with those of the reference engine, in float32 with repeatable
algorithms. Cases that fail are reported, and the others go on. `time`: milliseconds per client step in whole rounds of
20 clients of 96 images, batch 64 and 5 epochs, for the network of the presets mini-* (ResNet-9 of a quarter of the
width, 16 x 16) and for a network of a user's own, by engine, precision and lanes. Images are random.
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
RESNET, OWN = "ResNet-9, 1/4, 16 x 16", "own network, 32 x 32"
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


def seconds_of(network: str, method: str, engine: str, lanes: int, rounds: int, precision: str) -> dict[str, Any]:
    """Milliseconds per client step over whole rounds after the first two, which choose algorithms and capture."""
    images = 96 * 5 if network == RESNET else 512
    made = federation(
        network, method, "reference", images, 0.5 if network == OWN else 0.0, precision=precision, epochs=5
    )
    work = made.engine.work  # type: ignore[attr-defined]
    chosen = {
        "reference": lambda: ReferenceEngine(work),
        "compiled": lambda: CompiledEngine(work, lanes),
        "auto": lambda: build_engine("auto", work),
    }[engine]()
    if DEVICE == "cuda":
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.cuda.reset_peak_memory_stats()
    each, first = [], 0.0
    for round_number in range(1, rounds + 3):
        began = time.perf_counter()
        results = made.clients.train(round_number, range(CLIENTS), chosen)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - began
        first = first or spent
        each.append(1e3 * spent / sum(result.steps for result in results.values()))
    loss = statistics.fmean(result.loss for result in results.values())
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    return {
        "network": network, "method": method, "engine": chosen.describe()["engine"], "precision": precision,
        "lanes": lanes, "step_ms": statistics.median(each[2:]), "first_round_s": first, "peak_gib": peak, "loss": loss,
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
    ("reference", 0, "fp32"), ("reference", 0, "bf16"), ("compiled", 1, "fp32"), ("compiled", 1, "bf16"),
    ("compiled", 2, "bf16"), ("compiled", 4, "bf16"), ("compiled", 8, "bf16"), ("compiled", 4, "tf32"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/performance/compiled.json"))
    parser.add_argument("--only", choices=("check", "time"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"checks": [], "times": [], "failures": [], "environment": describe_environment(1, DEVICE)}

    def attempt(kind: str, function: Any, *args: Any, **settings: Any) -> dict[str, Any] | None:
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
        if found:
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
        print(f"\n{'time':24} {'method':20} engine    precision lanes  ms/step  first round s  GiB")
        for network in (RESNET, OWN):
            for method in ("fedavg", "factorized-fl-beta"):
                timed = [*TIMES, ("auto", 0, "bf16")] if network == RESNET else TIMES
                for engine, lanes, precision in timed:
                    row = attempt("times", seconds_of, network, method, engine, lanes, arguments.rounds, precision)
                    if row:
                        numbers = f"{row['step_ms']:7.3f}  {row['first_round_s']:8.1f}  {row['peak_gib']:8.2f}"
                        print(
                            f"{network:24} {method:20} {row['engine']:10} {precision:6} {lanes:5}  {numbers}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
