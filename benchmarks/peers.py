"""Time of a client step with the CUDA engine, the reference engine and a DataLoader as in other frameworks, on one GPU.

    python benchmarks/peers.py [--workers 8] [--out results/performance/peers.json]

The work is one local epoch in the shape of CIFAR-10: clients with 2,400 images, batches of 256, the augmentation of the
paper, a factorised ResNet-9, SGD. Other frameworks train one client after another with a DataLoader that augments
single images on the CPU. Its time is measured over a few clients, with and without worker processes.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import Scenario, build_scenario
from factorized_fl.nn import build_model, factorize
from factorized_fl.results.environment import describe_environment
from factorized_fl.simulate.build import Federation, build_federation

METHOD, SPARSITY = "factorized-fl-beta", 5e-4
CONFIG = {"method": METHOD, "permuted": True, "epochs": 1, "rounds": 10}


class Pictures(Dataset):
    """A client's images with the authors' augmentation as torchvision's transforms would do it, on PIL images."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images.permute(0, 2, 3, 1).contiguous().numpy(), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[index])
        chance = torch.rand(12).tolist()
        side = max(8, int(32 * (0.08 + 0.92 * chance[0]) ** 0.5))
        left, top = int(chance[1] * (33 - side)), int(chance[2] * (33 - side))
        image = image.resize((32, 32), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if chance[3] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if chance[4] < 0.8:
            image = ImageEnhance.Brightness(image).enhance(0.6 + 0.8 * chance[5])
            image = ImageEnhance.Contrast(image).enhance(0.6 + 0.8 * chance[6])
            image = ImageEnhance.Color(image).enhance(0.8 + 0.4 * chance[7])
            hue, saturation, value = image.convert("HSV").split()
            turned = hue.point(lambda level: (level + int(255 * 0.1 * (2 * chance[8] - 1))) % 256)
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
        if chance[9] < 0.2:
            image = image.convert("L").convert("RGB")
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1)
        return (pixels.float() / 255 - 0.5) / 0.25, int(self.labels[index])


def scenario() -> Scenario:
    images = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8)
    source = ImageSet("random", images, torch.arange(len(images)) % 10, tuple("abcdefghij"))
    return build_scenario([source], ((0.5,) * 3, (0.25,) * 3), clients=20, permuted=True)


def engine_ms(federation: Federation, clients: int, repeats: int) -> float:
    """Milliseconds per client step, after a round that compiles and captures."""
    chosen = list(range(clients))

    def once(round_number: int) -> int:
        trained = federation.engine.train(round_number, chosen, federation.clients, lambda k: None)
        torch.cuda.synchronize()
        return sum(result.steps for result in trained.values())

    once(1)
    began = time.perf_counter()
    steps = sum(once(2 + again) for again in range(repeats))
    return (time.perf_counter() - began) / steps * 1e3


def loader_ms(found: Scenario, clients: int, workers: int) -> float:
    """The same with a DataLoader per client and plain PyTorch, its defaults untouched."""
    steps, seconds = 0, 0.0
    for turn in range(clients + 1):  # the first client warms up and does not count
        client = found.clients[turn]
        labels = client.labelling[found.labels[client.train]]
        loader = DataLoader(
            Pictures(found.images[client.train], labels), 256, shuffle=True, drop_last=True, num_workers=workers
        )
        model = factorize(build_model("resnet9", 10)).cuda().train()
        penalised = [p for name, p in model.named_parameters() if name.endswith("original")]
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-6)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for images, targets in loader:
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.cuda()), targets.cuda())
            (loss + SPARSITY * sum(p.abs().sum() for p in penalised)).backward()
            optimiser.step()
            if turn:
                steps += 1
        torch.cuda.synchronize()
        if turn:
            seconds += time.perf_counter() - began
    return seconds / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/performance/peers.json"))
    arguments = parser.parse_args()
    found, config, device = scenario(), from_table(CONFIG), torch.device("cuda")
    # The DataLoader loops come first: our engine switches TensorFloat-32 off, theirs may use it.
    ms = {
        "dataloader": loader_ms(found, 2, 0),
        f"dataloader, {arguments.workers} workers": loader_ms(found, 4, arguments.workers),
        "reference engine": engine_ms(build_federation(config, found, device, "reference"), 4, 2),
        "cuda engine": engine_ms(build_federation(config, found, device), 20, 4),
    }
    ours = ms["cuda engine"]
    for name, each in ms.items():
        print(f"{name:24} {each:8.2f} ms per client step, {each / ours:6.1f} times ours", flush=True)
    ratios = {name: each / ours for name, each in ms.items() if name != "cuda engine"}
    result = {"ms": ms, "ratios": ratios, "environment": describe_environment(1, "cuda")}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
