"""A package with a network and frozen weights, installed in a folder of its own as pip would do it."""

from pathlib import Path

import safetensors.torch
import torch

MODEL = "mynets:Net"
CODE = """
from pathlib import Path
import safetensors.torch
from torch import nn

class Net(nn.Module):
    def __init__(self, example, outputs):
        super().__init__()
        self.head = nn.Linear(WIDTH, outputs)  # drawn before the body: the body must not depend on it
        self.backbone = nn.Conv2d(example.shape[1], 4, 3, padding=1)
        self.backbone.load_state_dict(safetensors.torch.load_file(Path(__file__).with_name("backbone.safetensors")))
        self.backbone.requires_grad_(False)
        self.middle = nn.Conv2d(4, WIDTH, 3, stride=2)
        self.norm = nn.GroupNorm(2, WIDTH)

    def forward(self, x):
        return self.head(self.norm(self.middle(self.backbone(x).relu())).relu().amax((2, 3)))
"""


def install(site_packages: Path, version: str = "1.2", width: int = 8, seed: int = 0) -> Path:
    """Write the package `mynets`; returns the folder, which has to be on the path of Python."""
    package, info = site_packages / "mynets", site_packages / "mynets.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(CODE.replace("WIDTH", str(width)))
    generator = torch.Generator().manual_seed(seed)
    weights = {"weight": torch.randn(4, 1, 3, 3, generator=generator), "bias": torch.zeros(4)}
    safetensors.torch.save_file(weights, package / "backbone.safetensors")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mynets\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[factorized_fl.models]\nnet = {MODEL}\n")
    return site_packages
