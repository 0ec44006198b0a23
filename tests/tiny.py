"""A federation small enough for a test: four clients, two domains of small grey images, a few steps."""

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from PIL import Image

from factorized_fl.config import Config, from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import Scenario, build_scenario
from factorized_fl.sections import nest
from factorized_fl.simulate.build import Federation, build_federation

TABLE: dict[str, Any] = {
    "dataset": "folder",
    "image_size": 8,
    "channels": 1,
    "model": "cnn",
    "width": 0.25,
    "clients": 4,
    "permuted": True,
    "rounds": 3,
    "epochs": 1,
    "batch_size": 8,
    "lr": 0.05,
    "augment": "none",
    "train_share": 0.6,
}


def tiny_config(method: str = "factorized-fl", **settings: Any) -> Config:
    return from_table({**TABLE, "method": method, **settings})


def write_config(path: Path, **settings: Any) -> Path:
    """Writes the configuration of `tiny_config` to a file."""
    path.write_text(tomli_w.dumps(nest({**TABLE, **settings})))
    return path


def tiny_set(name: str = "bars", classes: int = 3, count: int = 60, seed: int = 0) -> ImageSet:
    """Images with a bright row c on noise for class c: learnable in a few steps."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = rng.integers(0, 120, (count, 1, 8, 8))
    images[np.arange(count), 0, labels] += 130
    names = tuple(f"{name}-{c}" for c in range(classes))
    return ImageSet(name, torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels), names)


def tiny_scenario(config: Config, domains: tuple[ImageSet, ...] | None = None) -> Scenario:
    agree = config.build_method().needs_agreeing_labels
    if domains is None:
        domains = (tiny_set("bars", 3, 90),) if agree else (tiny_set("bars", 3), tiny_set("lines", 5, 80, seed=1))
    return build_scenario(
        domains,
        ((0.5,), (0.25,)),
        clients=config.clients,
        partition=config.partition,
        permuted=config.permuted and not agree,
        train_share=config.train_share,
        seed=config.seed,
    )


def tiny_federation(method: str = "factorized-fl", **settings: Any) -> Federation:
    config = tiny_config(method, **settings)
    return build_federation(config, tiny_scenario(config), torch.device("cpu"))


def write_folder(root: Path, domains: tuple[ImageSet, ...] | None = None) -> Path:
    """Writes the images as files in root/domain/class."""
    for domain in domains or (tiny_set("bars", 3), tiny_set("lines", 5, 80, seed=1)):
        for index, (image, label) in enumerate(zip(domain.images, domain.labels, strict=True)):
            folder = root / domain.name / domain.classes[int(label)]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(folder / f"{index:03d}.png")
    return root
