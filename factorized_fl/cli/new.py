"""The command `new`: a small project with a network, data, a configuration and a test."""

from pathlib import Path
from typing import Annotated

import typer

from factorized_fl.cli.common import console
from factorized_fl.core.errors import UserError

_FILES = {
    "mynet.py": '''"""The network of this project: replace it by yours."""

import torch
from torch import nn


class Net(nn.Module):
    """Two layers. `example` is a batch of one input, `outputs` the client's number of classes."""

    def __init__(self, example: torch.Tensor, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(example.numel(), width), nn.ReLU())
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.head(self.body(x))
''',
    "mydata.py": '''"""The data of this project: replace the random numbers by yours."""

import torch

import factorized_fl as ffl


def clients() -> list[ffl.ClientData]:
    """Return three clients, whose classes 0 and 1 differ in their mean."""
    found = []
    for k in range(3):
        y = torch.arange(80) % 2
        x = torch.randn(80, 10, generator=torch.Generator().manual_seed(k)) + y[:, None]
        found.append(ffl.ClientData(x, y, name=f"site {k + 1}", classes=["normal", "viral"]))
    return found
''',
    "run.toml": """# ffl --load mynet.py --load mydata.py run run.toml

[data]
name = "mydata:clients"
clients = 3

[model]
name = "mynet:Net"

[model.options]
width = 8

[train]
optimizer = "adamw"
lr = 0.01
epochs = 2
batch_size = 16
augment = "none"

[federation]
rounds = 3
seed = 1

[method]
name = "factorized-fl"
tau = 0.0
epsilon = 1.0
""",
    "test_project.py": '''"""Run with pytest in this folder."""

import mydata
import mynet

import factorized_fl as ffl


def test_the_federation_learns(tmp_path):
    settings = {"method": "factorized-fl", "rounds": 3, "lr": 0.05, "batch_size": 16}
    run = ffl.run(mydata.clients(), tmp_path / "run", model=mynet.Net, **settings)
    assert run.summary()["accuracy_mean"] > 0.6
''',
}


def new_command(folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")]) -> None:
    """Write a small project of your own: network, data, configuration and a test."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' exists and is not empty: choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    console.print(f"{folder} has {', '.join(_FILES)}. Run it:", highlight=False)
    console.print(f"cd {folder} && ffl --load mynet.py --load mydata.py run run.toml", highlight=False, soft_wrap=True)
