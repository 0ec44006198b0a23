"""What the loops of `benchmarks/cpu_loops.py` train: the same network from the same weights, on the same clients.

`small`: 20 clients of 128 random images of 3 x 32 x 32, 4 batches of 32 in one local epoch. `resnet9`: the paper's
ResNet-9, 2 clients of 256 images, 4 batches of 64.
"""

import json
import time
from functools import cache
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What is trained: the same for all implementations."""

    network: str
    clients: int
    images: int
    batch: int
    lr: float
    rounds: int = 5


WORKS = {"small": Work("small", 20, 128, 32, 0.05), "resnet9": Work("resnet9", 2, 256, 64, 0.01)}


def make_network(name: str) -> Any:
    """Two convolutions and two Linear layers: 71,000 numbers, from the same weights in every process; or ResNet-9."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    if name == "resnet9":
        from factorized_fl.nn.models import ResNet9

        return ResNet9(3, lambda width: width, lambda width: nn.Linear(width, 10))
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


@cache
def client_data(k: int, images: int) -> tuple[Any, Any]:
    """The random images of client k and their classes."""
    import torch

    generator = torch.Generator().manual_seed(100 + k)
    return (
        torch.randn(images, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (images,), generator=generator),
    )


class Clock:
    """Notes when rounds end, and how long importing PyTorch takes, which every implementation does."""

    def __init__(self, began: float) -> None:
        self.began, self.times = began, list[float]()
        first, cpu = time.time(), time.process_time()
        import torch  # noqa: F401

        self.torch, self.torch_cpu = time.time() - first, time.process_time() - cpu

    def mark(self) -> None:
        """Notes that the first round begins, and prints it, or that a round has ended."""
        self.times.append(time.time())
        if len(self.times) == 1:
            cpu = {"cpu": time.process_time(), "torch_cpu": self.torch_cpu}
            print(json.dumps({"started": self.times[0] - self.began, "torch": self.torch, **cpu}), flush=True)

    def result(self) -> dict[str, Any]:
        """The seconds until the first round, of them importing PyTorch, and those of each round."""
        each = [late - early for early, late in zip(self.times, self.times[1:], strict=False)]
        return {"start": self.times[0] - self.began, "torch": self.torch, "rounds": each}
