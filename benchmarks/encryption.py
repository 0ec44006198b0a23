"""Encrypted aggregation beside the plain one: final metrics, bytes and seconds of Factorized-FL, and FedAvg's bytes.

    python -m benchmarks.encryption --data DIR --out results/privacy/encryption.json

The network is the paper's; each client has few images, so that a CPU suffices. A round of the paper is longer, while
the encryption takes the same time.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from factorized_fl.config import from_table
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.run import run_federation

TABLE: dict[str, Any] = {
    "dataset": "cifar10",
    "model": "resnet9",
    "permuted": True,
    "test_images": 20,
    "epochs": 1,
    "batch_size": 32,
}


def run(folder: Path, data: Path, table: dict[str, Any]) -> RunDirectory:
    name = "-".join(str(table[key]) for key in ("method", "protect"))
    return run_federation(from_table({**TABLE, **table}), folder / name, data=data, device="cpu")


def total(directory: RunDirectory) -> int:
    summary = directory.summary()
    assert summary is not None
    return int(summary["up_bytes"] + summary["down_bytes"])


def largest_difference(one: RunDirectory, two: RunDirectory, name: str) -> float:
    """The largest relative difference of a field over all lines of the metrics."""
    pairs = zip(one.metrics(), two.metrics(), strict=True)
    values = [(a[name], b[name]) for a, b in pairs if a[name] is not None]
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in values)


def measure(data: Path, clients: int, rounds: int, images: int) -> dict[str, Any]:
    shape = {"clients": clients, "rounds": rounds, "images_per_client": images}
    method = {"method": "factorized-fl", "options": {"match": "statistics"}}
    with tempfile.TemporaryDirectory() as scratch:
        plain, encrypted, fedavg = (
            run(Path(scratch), data, {**shape, **each})
            for each in (
                {**method, "protect": "none"},
                {**method, "protect": "encrypt"},
                {"method": "fedavg", "protect": "none"},
            )
        )
        lines = encrypted.timing()[1:]  # the first round has nothing to decrypt
        spent = [sum(line[f"{what}_seconds"] for what in ("encrypt", "mix", "decrypt")) for line in lines]
        last = next(line for line in encrypted.metrics() if line["round"] == rounds)
        return {
            **TABLE,
            **shape,
            "final_accuracy": [plain.summary()["accuracy_mean"], encrypted.summary()["accuracy_mean"]],  # type: ignore[index]
            "largest_relative_difference_of_losses": largest_difference(plain, encrypted, "loss"),
            "accuracies_equal": largest_difference(plain, encrypted, "accuracy") == 0,
            "bytes_up_client_round": last["up_bytes"],
            "bytes_down_client_round": last["down_bytes"],
            "total_bytes": {"plain": total(plain), "encrypted": total(encrypted), "fedavg_plain": total(fedavg)},
            "encrypted_over_fedavg": total(encrypted) / total(fedavg),
            "seconds_round_plain": statistics.median(line["seconds"] for line in plain.timing()[1:]),
            "seconds_round_encrypted": statistics.median(line["seconds"] for line in lines),
            "seconds_of_encryption_round": statistics.median(spent),
            "seconds_by_part": {
                what: statistics.median(line[f"{what}_seconds"] for line in lines)
                for what in ("encrypt", "mix", "decrypt")
            },
            "share_of_round": statistics.median(s / line["seconds"] for s, line in zip(spent, lines, strict=True)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=32)
    given = parser.parse_args()
    found = measure(given.data, given.clients, given.rounds, given.images)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
