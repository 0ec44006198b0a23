"""A whole run of the paper's setting on a GPU, timed: start-up apart from the rounds.

python benchmarks/full_run.py --data DIR [--preset cifar10-permuted-iid] [--methods factorized-fl-beta]
                              [--set key=value ...] [--out results/performance/full-run.json]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from factorized_fl.api import configure, run
from factorized_fl.core.toml_text import parse_setting
from factorized_fl.results.environment import describe_environment


class Watch:
    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first = self.last = 0.0
        self.spent = {"train": 0.0, "evaluate": 0.0}  # since the first round

    def started(self, federation, done) -> None:
        for name in self.spent:
            setattr(federation.engine, name, self.timed(name, getattr(federation.engine, name)))

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The engine's method with its time added to `spent`; it returns after the device has finished."""

        def run(*args: Any) -> Any:
            began = time.perf_counter()
            result = work(*args)
            self.spent[name] += time.perf_counter() - began if self.first else 0.0
            return result

        return run

    def client_done(self, round_number, client) -> None: ...

    def round_done(self, round_number, records) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--preset", default="cifar10-permuted-iid")
    parser.add_argument("--methods", default="factorized-fl-beta")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("results/performance/full-run.json"))
    arguments = parser.parse_args()
    rows = []
    for method in arguments.methods.split(","):
        config = configure(arguments.preset, method, **dict(parse_setting(text) for text in arguments.set))
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            watch = Watch()
            directory = run(config, Path(folder) / "run", data=arguments.data, observers=[watch])
            summary = directory.summary()
        # The first round compiles and captures: its time beyond an ordinary round is start-up.
        all_but_first = max(1, config.rounds - 1)
        wall = (watch.last - watch.first) / all_but_first * config.rounds
        parts = {f"{name}_s": spent / all_but_first * config.rounds for name, spent in watch.spent.items()}
        rows.append(
            {
                "method": method,
                "preset": arguments.preset,
                "rounds": config.rounds,
                "wall_s": wall,
                **parts,  # of it; the rest is mixing, counting, files
                "startup_s": watch.last - watch.began - wall,
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
                "accuracy": summary["accuracy_mean"],
                "accuracies": [client["accuracy"] for client in summary["clients"]],
                "settings": arguments.set,
            }
        )
        row = rows[-1]
        print(
            f"{method}: {config.rounds} rounds in {wall:.1f} s (training {parts['train_s']:.1f}, "
            f"testing {parts['evaluate_s']:.1f}), start-up {row['startup_s']:.1f} s, "
            f"peak {row['peak_gib']:.1f} GiB, accuracy {100 * row['accuracy']:.2f}%",
            flush=True,
        )
        result = {**rows[0], "all": rows, "environment": describe_environment(config.seed, "cuda")}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
