"""Encrypted aggregation beside the plain one: final metrics, bytes and seconds of Factorized-FL, and FedAvg's bytes.

    python -m benchmarks.encryption --data DIR --out results/privacy/encryption.json --work FOLDER

The network is the paper's; each client has few images, so that a CPU suffices. A round of the paper is longer, while
the encryption takes the same time. Both runs are made twice: once as usual, and once with all tensors in 64 bits, where
the last digits that training magnifies are so small that what encryption itself changes is seen. Rounds that are done
are kept in FOLDER, and a call that was interrupted continues from there.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from factorized_fl.config import from_table
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


def run(folder: Path, data: Path, table: dict[str, Any], dtype: torch.dtype = torch.float32) -> RunDirectory:
    name = "-".join(str(part) for part in (table["method"], table["protect"], dtype))
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
    """The metrics of the last round without and with encryption, and the largest relative differences."""
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
    exact = [run(folder, data, {**method, "protect": protect}, torch.float64) for protect in ("none", "encrypt")]
    lines = encrypted.timing()[1:]  # the first round has nothing to decrypt
    spent = [sum(line[f"{what}_seconds"] for what in ("encrypt", "mix", "decrypt")) for line in lines]
    last = next(line for line in encrypted.metrics() if line["round"] == rounds)
    return {
        **TABLE,
        **shape,
        "in_32_bits": compared(plain, encrypted, rounds),
        "in_64_bits": compared(exact[0], exact[1], rounds),
        "bytes_up_client_round": last["up_bytes"],
        "bytes_down_client_round": last["down_bytes"],
        "total_bytes": {"plain": total(plain), "encrypted": total(encrypted), "fedavg_plain": total(fedavg)},
        "encrypted_over_fedavg": total(encrypted) / total(fedavg),
        "seconds_round_plain": statistics.median(line["seconds"] for line in plain.timing()[1:]),
        "seconds_round_encrypted": statistics.median(line["seconds"] for line in lines),
        "seconds_of_encryption_round": statistics.median(spent),
        "seconds_by_part": {
            what: statistics.median(line[f"{what}_seconds"] for line in lines) for what in ("encrypt", "mix", "decrypt")
        },
        "share_of_round": statistics.median(s / line["seconds"] for s, line in zip(spent, lines, strict=True)),
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
