"""Memory of K clients with a frozen backbone: each adds its trainable part and its optimiser's state, nothing else.

Usage: python benchmarks/frozen_memory.py [OUT]; writes results/performance/frozen-memory.json by default.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.own import own_config, own_run_scenario
from factorized_fl.simulate.training import bring
from tests.own.nets import own_clients

WIDTH, LAYERS, BOTTLENECK = 512, 16, 32


class Net(nn.Module):
    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.backbone = nn.Sequential(nn.Linear(example.shape[1], WIDTH), *layers).requires_grad_(False)
        self.middle = nn.Linear(WIDTH, BOTTLENECK)
        self.head = nn.Linear(BOTTLENECK, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.backbone(x)).relu())


def same(x: Tensor, generator: torch.Generator) -> Tensor:
    """An augmentation that changes nothing: with one, features do not take the place of the frozen backbone."""
    return x


def held(count: int, optimizer: str) -> dict[str, int]:
    """Bytes of distinct storages of all tensors that a federation of so many clients holds, except its data."""
    clients = own_clients(outputs=(3,) * count, named=True)
    settings, brought = bring({"model": "benchmark:Net", "optimizer": optimizer, "batch_size": 4, "augment": same})
    config = own_config(clients, "fedavg", settings)
    scenario = own_run_scenario(clients, config)
    federation = build_federation(config, scenario, torch.device("cpu"), "reference", factory=Net, brought=brought)
    models = (tensor for model in federation.engine.work.models.values() for tensor in model.state_dict().values())
    tensors = [*federation.tensors.values(), *models]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}
    model = Net(torch.zeros(1, 5), 3)
    return {
        "clients": count,
        "frozen_bytes": 4 * sum(p.numel() for p in model.parameters() if not p.requires_grad),
        "trainable_bytes": 4 * sum(p.numel() for p in model.parameters() if p.requires_grad),
        "held_bytes": sum(storages.values()),
    }


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/performance/frozen-memory.json")
    report = {}
    for optimizer, copies in (("sgd", 2), ("adamw", 3)):  # the weights, and one or two tensors of state
        few, many = (held(count, optimizer) for count in (10, 100))
        each = (many["held_bytes"] - few["held_bytes"]) / 90
        report[optimizer] = {
            "runs": [few, many],
            "bytes_for_each_client": each,
            "bytes_of_weights_and_state": copies * few["trainable_bytes"],
            "ratio": round(each / (copies * few["trainable_bytes"]), 4),
        }
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
