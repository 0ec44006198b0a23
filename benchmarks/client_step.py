"""Time of one client step on a GPU: batch 256 through augmentation, forward, backward, L1 and SGD.

    python benchmarks/client_step.py [--lanes 1,2,4,5,10,20] [--methods stand-alone,factorized-fl-beta]
                                     [--precision bf16] [--rounds 5] [--repeatable] [--profile]
                                     [--out results/performance/client-step.json]

Prints a table and writes it. The time of a step is that of the captured graph divided by its lanes. Further columns
give the same for whole rounds of 20 clients, including batches, loading and storing, and the time of testing all
clients. The images are random and have the shape of CIFAR-10. `state` is a digest of the tensors of all clients after
the rounds: two processes with equal digests computed the same bits.
"""

import argparse
import hashlib
import json
import statistics
import time
from pathlib import Path

import torch

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.engine.resnet9_cuda.engine import CudaEngine
from factorized_fl.engine.resnet9_cuda.lanes import Stay
from factorized_fl.engine.resnet9_cuda.step import Step
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import build_federation

TFLOP = 0.464  # of one ResNet-9 step: 0.302 GMAC forward per 32 x 32 image, three passes, 256 images


FEW = 4  # steps between two measurements of time


def steps(method: str, lanes: int, arguments: argparse.Namespace) -> dict:
    images = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    source = ImageSet("random", images, torch.arange(len(images)) % 10, tuple("abcdefghij"))
    table = {"precision": arguments.precision, "repeatable": arguments.repeatable}
    config = from_table({**table, "method": method, "permuted": True})
    scenario = build_scenario([source], ((0.5,) * 3, (0.25,) * 3), clients=20, permuted=True)
    federation = build_federation(config, scenario, torch.device("cuda"), "reference")
    engine = CudaEngine(federation.engine, lanes)
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    step = engine.step = Step(engine, federation.clients)
    torch.cuda.synchronize()
    startup = time.perf_counter() - began
    stays = [Stay(lane, lane, 0, engine._steps(lane)) for lane in range(lanes)]
    batches = engine._upload(1, stays)
    times = []
    for turn in range(3):
        step.load(stays, federation.clients)
        for part in range(40 // FEW):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for index in range(FEW * part, FEW * (part + 1)):
                step.run(*(tensor[index % len(tensor)] for tensor in batches))
            last.record()
            if turn:
                times.append((first, last))
    torch.cuda.synchronize()
    each = [first.elapsed_time(last) / (FEW * lanes) for first, last in times]
    loss = step.loss.mean().item()
    rounds, tests = [], []
    for round_number in range(1, arguments.rounds + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = engine.train(round_number, range(20), federation.clients, lambda client: None)
        torch.cuda.synchronize()
        trained = time.perf_counter()
        engine.evaluate(round_number, range(20), federation.clients)
        rounds.append((trained - began) * 1e3 / sum(result.steps for result in found.values()))
        tests.append(time.perf_counter() - trained)
    if arguments.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            for index in range(10):
                step.run(*(tensor[index] for tensor in batches))
            torch.cuda.synchronize()
        rows = sorted(profiled.key_averages(), key=lambda row: -row.self_device_time_total)[:28]
        for row in rows:
            per = row.self_device_time_total / 10 / lanes
            print(f"  {per:8.1f} us  x{row.count / 10:5.1f}  {row.key[:110]}")
    return {
        "method": method,
        "lanes": lanes,
        "precision": arguments.precision,
        "repeatable": arguments.repeatable,
        "median_ms": statistics.median(each),
        "p90_ms": sorted(each)[int(0.9 * len(each))],
        "round_ms": statistics.median(rounds),
        "test_s": statistics.median(tests),
        "tflops": TFLOP / statistics.median(each) * 1e3,
        "capture_s": startup,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "loss": loss,
        "state": digest(federation.clients.state.flat("state")),
    }


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """The first sixteen hexadecimal digits of the SHA-256 of the tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(tensors[name].cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lanes", default="1,2,4,5,10,20")
    parser.add_argument("--methods", default="factorized-fl-beta")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeatable", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/performance/client-step.json"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for method in arguments.methods.split(","):
        for lanes in map(int, arguments.lanes.split(",")):
            row = steps(method, lanes, arguments)
            rows.append(row)
            print(
                f"{method:20} {lanes:2} lanes: {row['median_ms']:.3f} ms per client step, "
                f"{row['round_ms']:.3f} in whole rounds, {row['tflops']:.0f} TFLOP/s, tests {row['test_s']:.2f} s, "
                f"peak {row['peak_gib']:.1f} GiB, capture {row['capture_s']:.1f} s, "
                f"loss {row['loss']:.3f}, state {row['state']}",
                flush=True,
            )
            best = min((row for row in rows if row["method"] == rows[0]["method"]), key=lambda row: row["median_ms"])
            result = {**best, "all": rows, "environment": describe_environment(1, "cuda")}
            arguments.out.write_text(json.dumps(result, indent=2) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
