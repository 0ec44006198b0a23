"""Three parties of a small federation: two know the same kind of picture, none agrees with another about classes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from factorized_fl.config import Config, from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.silo.coordinator import Coordinator
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import Message, pack, unpack
from factorized_fl.silo.plan import COORDINATOR, Kit, Plan
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


def kits_of(root: Path, config: Config, **plan: Any) -> dict[str, Kit]:
    """Kits without certificates, for parties that talk in one process."""
    terms = {"name": "trio", "sites": NAMES, "id": "f" * 16, "largest": 10_000_000, "deadline": 30.0, **plan}
    agreed = Plan(**terms)
    for party in (COORDINATOR, *NAMES):
        (root / party).mkdir(parents=True, exist_ok=True)
    return {party: Kit(root / party, party, agreed, config) for party in (COORDINATOR, *NAMES)}


Handler = Callable[[Message], Message]


class Loopback:
    """The whole federation in one process: a thread for each party, every message as bytes, no FLARE."""

    def __init__(self, kits: dict[str, Kit], handlers: dict[str, Handler]) -> None:
        self.kits, self.handlers = kits, handlers
        self.journal: list[str] = []
        plan = kits[COORDINATOR].plan
        self.mailbox = Mailbox(plan.id, plan.sites, self.journal.append)
        self.coordinator = Coordinator(kits[COORDINATOR], self.mailbox, self.journal.append)
        self.plan = plan

    def run(self) -> bool:
        """To the end; true if all rounds are complete."""
        threads = [threading.Thread(target=self._site, args=(site,), daemon=True) for site in self.handlers]
        for thread in threads:
            thread.start()
        complete = self.coordinator.run()
        for thread in threads:
            thread.join(30)
        return complete

    def _site(self, site: str) -> None:
        ready = Message("ready", self.plan.id, {"train": self.handlers[site].__self__.train_images})
        news = ready
        while True:
            reply = self.mailbox.exchange(site, unpack(pack(news), self.plan.id, self.plan.largest), hold=0.2)
            if reply.kind == "end":
                return
            news = ready if reply.kind == "wait" else self.handlers[site](unpack(pack(reply), self.plan.id, 2**40))


def make_sites(kits: dict[str, Kit], data: Path, log: Callable[[str], None] = print) -> dict[str, Site]:
    return {name: Site(kits[name], data / name, log, report=True) for name in NAMES}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], tolerance: float = 1e-6) -> bool:
    return one.keys() == two.keys() and all(
        torch.allclose(one[name].double(), two[name].double(), rtol=0, atol=tolerance) for name in one
    )
