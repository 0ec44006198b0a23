"""What a round costs among 1,000 and among 100,000 clients, 100 of which take part: seconds, memory, files.

    python benchmarks/population.py [--clients 1000,100000] [--methods fedavg,factorized-peers] [--rounds 8]
                                    [--out results/performance/population.json]
    python benchmarks/population.py --network resnet9 --clients 100,1000 --per-round 10
                                    --out results/performance/population-resnet9.json

Whole runs, each in a process of its own, one after the other, twice. Every client has 12 random training images; the
network is the small `cnn` of a quarter of the width for 8 x 8 pixels, or the paper's ResNet-9 for 32 x 32. `cpu` is the
processor time of a round, which other work on the machine disturbs less than `seconds`; both are medians over the
rounds after the first and before the last, which tests a sample of all clients. `files` is what a round adds to the run
directory, `checkpoint` the size of the one file that is replaced. `peak_gib` is the largest memory, pages of files
included, which the kernel takes back when others need them; `own_gib` is the largest memory without these.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

IMAGES = 12  # of each client
SHARED = ("rounds", "network", "per_round")  # arguments that each run gets
NETWORKS: dict[str, dict[str, Any]] = {
    "small": {"model": "cnn", "width": 0.25, "image_size": 8, "channels": 1},
    "resnet9": {"model": "resnet9", "image_size": 32, "channels": 3, "storage": "disk"},
}


class Memory(threading.Thread):
    """Notes the largest memory of this process that does not belong to a file, in GiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, int(status.split("RssAnon:")[1].split()[0]) / 2**20)
            time.sleep(0.02)


class Clock:
    """Notes the times at which rounds end."""

    def __init__(self) -> None:
        self.wall, self.cpu = [0.0], [0.0]

    def started(self, federation: Any, done: int) -> None:
        self.wall, self.cpu = [time.perf_counter()], [time.process_time()]

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: Sequence[Any]) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


def measure(
    method: str, clients: int, rounds: int, network: str, per_round: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """One run in this process."""
    import torch

    from factorized_fl.config import from_table
    from factorized_fl.data.images import ImageSet
    from factorized_fl.data.scenarios import build_scenario
    from factorized_fl.simulate.run import run_federation

    memory = Memory()
    memory.start()
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(1)
    table = {"method": method, "augment": "none", **NETWORKS[network]}
    shape = (clients * IMAGES * 10 // 8, table["channels"], table["image_size"], table["image_size"])
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    source = ImageSet("random", images, torch.arange(len(images)) % 4, tuple("abcd"))
    table |= {"clients": clients, "fraction": per_round / clients, "rounds": rounds, "batch_size": IMAGES, "epochs": 2}
    sides = ((0.5,) * table["channels"], (0.25,) * table["channels"])
    scenario = build_scenario([source], sides, clients=clients, test_images=40, permuted=True)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = run_federation(
            from_table({**table, "permuted": True, **settings}),
            Path(folder) / "run",
            scenario=scenario,
            observers=[clock],
        )
        files = {name: _bytes(run.path / name, rounds) for name in ("mixing", "traces", "metrics.jsonl")}
        checkpoint = run.checkpoint_path.stat().st_size
    spans = {
        name: [late - early for early, late in pairwise(times)][1:-1]
        for name, times in (("seconds", clock.wall), ("cpu", clock.cpu))
    }
    return {
        "method": method, "clients": clients, **{name: statistics.median(all_of) for name, all_of in spans.items()},
        "rounds": spans, "files": sum(files.values()), "checkpoint": checkpoint,
        "start_seconds": clock.wall[0] - began,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "own_gib": memory.peak,
    }  # fmt: skip


def _bytes(path: Path, rounds: int) -> int:
    """The bytes of the largest file of a round, or of a round's share of a file of lines."""
    if path.is_file():
        return path.stat().st_size // rounds
    return max((found.stat().st_size for found in path.glob("*")), default=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="1000,100000")
    parser.add_argument("--methods", default="fedavg,factorized-peers")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--network", choices=list(NETWORKS), default="small")
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of a run, as text")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/performance/population.json"))
    arguments = parser.parse_args()
    settings = dict(text.split("=", 1) for text in arguments.set)
    if arguments.one:
        method, clients = arguments.one.split(":")
        print(json.dumps(measure(method, int(clients), *(getattr(arguments, name) for name in SHARED), settings)))
        return
    rows: list[dict[str, Any]] = []
    for again in range(2):
        for method in arguments.methods.split(","):
            for clients in arguments.clients.split(","):
                command = [sys.executable, __file__, "--one", f"{method}:{clients}"]
                for name in SHARED:
                    command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
                more = [part for text in arguments.set for part in ("--set", text)]
                done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(done.stderr)
                row = {**json.loads(done.stdout.splitlines()[-1]), "again": bool(again)}
                rows.append(row)
                print(
                    f"{method:18} {row['clients']:7} clients: {row['seconds']:.2f} s a round ({row['cpu']:.2f} s CPU), "
                    f"peak {row['peak_gib']:.2f} GiB ({row['own_gib']:.2f} without files), "
                    f"files {row['files'] / 1e6:.2f} MB a round, "
                    f"checkpoint {row['checkpoint'] / 1e6:.1f} MB, start {row['start_seconds']:.1f} s",
                    flush=True,
                )
    from factorized_fl.results.environment import describe_environment

    ratios = {}
    few, many = min(row["clients"] for row in rows), max(row["clients"] for row in rows)
    for method in arguments.methods.split(","):
        for what in ("seconds", "cpu"):
            best = {
                k: min(row[what] for row in rows if (row["method"], row["clients"]) == (method, k)) for k in (few, many)
            }
            ratios[f"{method} {what}"] = best[many] / best[few]
    print(", ".join(f"{name}: {ratio:.2f} times" for name, ratio in ratios.items()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "ratios": ratios,
        **{name: getattr(arguments, name) for name in SHARED},
        "all": rows,
        "environment": describe_environment(1, "cpu"),
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
