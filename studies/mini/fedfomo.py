"""FedFOMO on digits-iid with each choice of the statistics under which it tries models.

    python -m studies.mini.fedfomo --network "the package's cnn" [--seeds 1,2,3,4] [--work runs/mini-fedfomo]
    python -m studies.mini.fedfomo --network "cnn of commit 3a531ae" --model studies.mini.former_cnn:FormerCNN

Adds to results/mini/fedfomo-digits.json. Labels agree there and all clients draw from one source, so models of others
fit, and a wrong trial costs most. `--network` is the name of the entry: an entry with that name is replaced, the others
stay. `--model` is another network than that of the preset.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.api import run
from factorized_fl.core.files import write_atomically
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import Record, RunDirectory
from factorized_fl.results.schema import as_record
from studies.runner import layout

FILE = Path("results/mini/fedfomo-digits.json")
CHOICES = ("sender", "own", "recalibrated")


def main() -> None:
    """Measure and add the entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True)
    parser.add_argument("--model")
    parser.add_argument("--seeds", default="1,2,3,4")
    parser.add_argument("--work", type=Path, default=Path("runs/mini-fedfomo"))
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    found: Record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found[arguments.network] = measure(seeds, arguments.work, arguments.model)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, (layout(found) + "\n").encode())


def measure(seeds: list[int], work: Path, model: str | None = None) -> Record:
    """Return the mean test accuracy by choice and seed, in percent, with both kinds of statistics of the own model."""
    chosen: Record = {}
    network: Record = {} if model is None else {"model": model}
    for choice in CHOICES:
        runs = [
            run(
                "digits-iid",
                work / f"{choice}-seed{seed}",
                method="fedfomo",
                statistics=choice,
                seed=seed,
                resume=True,
                **network,
            )
            for seed in seeds
        ]
        chosen[choice] = {kind: _scores(runs, kind) for kind in ("plain", "recalibrated")}
        chosen[choice]["bytes_down"] = [as_record(one.summary())["down_bytes"] for one in runs]
    environment = describe_environment(0, "cpu")
    origin = {"commit": environment.pop("commit"), "environment": environment | {"seed": seeds}}
    return {
        **origin,
        "preset": "digits-iid",
        "method": "fedfomo",
        **network,
        "lr": runs[0].config().lr,
        "statistics": chosen,
    }


def _scores(runs: Sequence[RunDirectory], kind: str) -> Record:
    means = [round(100 * as_record(one.summary())["score_means"][kind]["test"], 2) for one in runs]
    return {"seeds": means, "mean": round(statistics.fmean(means), 2)}


if __name__ == "__main__":
    main()
