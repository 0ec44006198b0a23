"""Three sites of a small federation: two have the same kind of image, all have different classes."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from factorized_fl.config import Config, from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import Agreement, Kit
from factorized_fl.silo.site import Site
from tests.tiny import tiny_set

NAMES = ("aster", "birch", "cedar")
TABLE: dict[str, Any] = {
    "image_size": 8,
    "channels": 1,
    "model": "cnn",
    "width": 0.25,
    "rounds": 3,
    "epochs": 1,
    "batch_size": 8,
    "lr": 0.05,
    "augment": "none",
    "train_share": 0.6,
}


def write_images(folder: Path, images: ImageSet) -> None:
    """One folder per class."""
    for index, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        place = folder / images.classes[int(label)]
        place.mkdir(parents=True, exist_ok=True)
        picture = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        Image.fromarray(picture.numpy()).save(place / f"{index:04d}.png")


def write_trio(root: Path) -> Path:
    """Bright rows at two sites, of 4 and of 6 classes; bright columns of 3 classes at the third."""
    columns = tiny_set("column", 3, 60, seed=3)
    turned = ImageSet("column", columns.images.transpose(2, 3).contiguous(), columns.labels, columns.classes)
    for name, images in zip(
        NAMES, (tiny_set("row", 4, 64, seed=1), tiny_set("line", 6, 90, seed=2), turned), strict=True
    ):
        write_images(root / name, images)
    return root


def trio_config(method: str = "factorized-fl", **settings: Any) -> Config:
    return from_table({**TABLE, "dataset": "folder", "clients": 3, "method": method, **settings})


def kits_of(root: Path, config: Config, **changes: Any) -> dict[str, Kit]:
    """Kits without certificates, for parties that talk in one process."""
    terms = {"name": "trio", "sites": NAMES, "id": "f" * 16, "largest": 10_000_000, "deadline": 30.0, **changes}
    agreement = Agreement(**terms)
    for party in (COORDINATOR, *NAMES):
        (root / party).mkdir(parents=True, exist_ok=True)
    return {party: Kit(root / party, party, agreement, asdict(config)) for party in (COORDINATOR, *NAMES)}


def make_sites(kits: dict[str, Kit], data: Path, log: Callable[[str], None] = print) -> dict[str, Site]:
    return {name: Site(kits[name], data / name, log, report=True) for name in NAMES}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], tolerance: float = 1e-6) -> bool:
    return one.keys() == two.keys() and all(
        torch.allclose(one[name].double(), two[name].double(), rtol=0, atol=tolerance) for name in one
    )
