"""The folder of an exported model.

model.safetensors   the weights of the dense network
model.onnx          the network from raw pixels to class scores, where ONNX is installed
model.json          classes, preprocessing, architecture, accuracy
README.md           the model card
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.options import make
from factorized_fl.core.stack import load_untied
from factorized_fl.nn import build_model
from factorized_fl.tasks.augment import normalise

WEIGHTS, ONNX, ABOUT, CARD = "model.safetensors", "model.onnx", "model.json", "README.md"
ARCHITECTURE = ("width", "head_layers", "head_norm", "head_width")  # options of a network


@dataclass(frozen=True)
class Package:
    """Everything needed to use a model besides its weights: the content of model.json."""

    name: str
    method: str
    model: str
    width: float
    head_layers: int
    head_norm: bool
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    head_width: int = 0

    def network(self, weights: dict[str, torch.Tensor]) -> nn.Module:
        """Return the network with these weights; its input is raw pixels."""
        options = {option: getattr(self, option) for option in ARCHITECTURE}
        network = build_model(self.model, len(self.classes), channels=self.channels, **options)
        load_untied(network, weights)
        return FromPixels(network, self.mean, self.std).eval()


class FromPixels(nn.Module):
    """A network for raw pixels, uint8 [N, C, H, W], so that inputs cannot be scaled wrongly."""

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the class scores."""
        assert isinstance(self.mean, torch.Tensor)
        assert isinstance(self.std, torch.Tensor)
        return self.network(normalise(pixels.float() / 255, self.mean, self.std))


def read_package(folder: Path | str) -> Package:
    """Return the content of a folder's model.json."""
    folder = Path(folder)
    try:
        content = {"head_width": 0, **json.loads((folder / ABOUT).read_text(encoding="utf-8"))}  # older models lack it
        package = make(Package, {field.name: content[field.name] for field in fields(Package)}, "entry")
        if {len(package.mean), len(package.std)} != {package.channels}:
            raise ValueError("mean and std must have a number for each channel")
        return package
    except FileNotFoundError:
        inside = [*folder.glob(f"model/{ABOUT}"), *sorted(folder.glob(f"model/*/{ABOUT}"))]
        advice = f"did you mean '{inside[0].parent}'?" if inside else "make one with `ffl export RUN --client K`."
        raise UserError(f"'{folder}' holds no exported model: {advice}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"'{folder / ABOUT}' is damaged ({error}): export the model again.") from None


def load_network(folder: Path | str, package: Package) -> nn.Module:
    """Return the trained network; its input is raw pixels."""
    folder = Path(folder)
    try:
        return package.network(safetensors.torch.load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"'{folder / WEIGHTS}' does not fit its description ({reason}): export it again.") from None
