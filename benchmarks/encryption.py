"""Encrypted aggregation beside the plain one: final metrics and bytes of Factorized-FL, and FedAvg's bytes.

    python -m benchmarks.encryption --data DIR --out results/privacy/encryption.json --work FOLDER

The network is the paper's; each client has few images, so that a CPU suffices. Plain sums of 32-bit tensors are
computed in 32 bits, an encrypted sum is rounded to 32 bits once. So a third run computes plain sums in 64 bits and
rounds them once: what distinguishes it from the plain run is rounding alone, without encryption. A last pair of runs,
plain and encrypted, has 64-bit tensors throughout. Rounds that are done are kept in FOLDER, and a call that was
interrupted continues from there. Seconds are measured by benchmarks/encryption_time.py.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from factorized_fl.config import from_table
from factorized_fl.core import mixing
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.run import run_federation

TABLE: dict[str, Any] = {
    "dataset": "cifar10",
    "model": "resnet9",
    "permuted": True,
    "test_images": 20,
    "epochs": 1,
    "batch_size": 32,
    "augment": "none",  # which is made of 32-bit numbers
}


@contextmanager
def sums_in_64_bits() -> Iterator[None]:
    """Compute weighted sums of plain tensors in 64 bits and round them once."""
    usual = mixing.weigh
    mixing.weigh = lambda rows, stacked: usual(rows, stacked.double()).to(stacked.dtype)
    try:
        yield
    finally:
        mixing.weigh = usual


def run(
    folder: Path, data: Path, table: dict[str, Any], dtype: torch.dtype = torch.float32, name: str = ""
) -> RunDirectory:
    name = "-".join(str(part) for part in (table["method"], table["protect"], dtype, *([name] if name else [])))
    torch.set_default_dtype(dtype)
    try:
        config = from_table({**TABLE, **table})
        return run_federation(config, folder / name, data=data, device="cpu", resume=(folder / name).exists())
    finally:
        torch.set_default_dtype(torch.float32)


def total(directory: RunDirectory) -> int:
    summary = directory.summary()
    assert summary is not None
    return int(summary["up_bytes"] + summary["down_bytes"])


def compared(plain: RunDirectory, encrypted: RunDirectory, rounds: int) -> dict[str, Any]:
    """The metrics of the last round of two runs, and the largest relative differences in all rounds."""
    pairs = list(zip(plain.metrics(), encrypted.metrics(), strict=True))
    last = [pair for pair in pairs if pair[0]["round"] == rounds]
    found: dict[str, Any] = {}
    for name in ("accuracy", "loss"):
        means = [statistics.fmean(pair[side][name] for pair in last) for side in (0, 1)]
        found[f"final_{name}"] = means
        found[f"difference_of_final_{name}"] = abs(means[0] - means[1]) / means[0]
    found["accuracies_equal"] = all(one["accuracy"] == two["accuracy"] for one, two in pairs)
    found["largest_difference_of_losses"] = max(abs(one["loss"] - two["loss"]) / one["loss"] for one, two in pairs)
    return found


def measure(data: Path, folder: Path, clients: int, rounds: int, images: int) -> dict[str, Any]:
    shape = {"clients": clients, "rounds": rounds, "images_per_client": images}
    method = {**shape, "method": "factorized-fl", "options": {"match": "statistics"}}
    fedavg = run(folder, data, {**shape, "method": "fedavg", "protect": "none"})
    plain, encrypted = (run(folder, data, {**method, "protect": protect}) for protect in ("none", "encrypt"))
    with sums_in_64_bits():
        rounded = run(folder, data, {**method, "protect": "none"}, name="sums-in-64-bits")
    exact = [run(folder, data, {**method, "protect": protect}, torch.float64) for protect in ("none", "encrypt")]
    last = next(line for line in encrypted.metrics() if line["round"] == rounds)
    return {
        **TABLE,
        **shape,
        "plain_and_encrypted": compared(plain, encrypted, rounds),
        "plain_and_plain_with_64_bit_sums": compared(plain, rounded, rounds),
        "plain_with_64_bit_sums_and_encrypted": compared(rounded, encrypted, rounds),
        "plain_and_encrypted_in_64_bits": compared(exact[0], exact[1], rounds),
        "bytes_up_client_round": last["up_bytes"],
        "bytes_down_client_round": last["down_bytes"],
        "total_bytes": {"plain": total(plain), "encrypted": total(encrypted), "fedavg_plain": total(fedavg)},
        "encrypted_over_fedavg": total(encrypted) / total(fedavg),
        "environment": describe_environment(1, "cpu"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(given.data, given.work, given.clients, given.rounds, given.images)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
