"""The folder of an exported model.

model.safetensors   the weights of the dense network
model.onnx          the network from raw pixels to class scores, where ONNX is installed
model.json          classes, preprocessing, architecture, accuracy
README.md           the model card
"""

import json
import warnings
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.options import make
from factorized_fl.core.stack import load_untied
from factorized_fl.nn import build_model
from factorized_fl.nn.installed import find_installed
from factorized_fl.nn.models import MODELS
from factorized_fl.nn.own import Factory, make_own_model
from factorized_fl.tasks.augment import normalise

PIXELS, NUMBERS, TOKENS = "pixels", "numbers", "tokens"
INPUTS = {PIXELS: torch.uint8, NUMBERS: torch.float32, TOKENS: torch.int64}  # the types of a model's inputs
CLASSES, LABELS, VALUES = "classes", "labels", "numbers"  # the outputs of a model: one class, several labels, numbers
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
    package: str = ""  # the installed package of a network that is not built in, and its version
    version: str = ""
    inputs: str = PIXELS  # the kind of input: raw pixels, or numbers or tokens that the network takes as they are
    shape: tuple[int, ...] = ()  # of one input; empty for square images of image_size
    window: str = ""  # LEVEL/WIDTH of grey values in pictures with more than 8 bits, where one was chosen
    targets: str = CLASSES  # the kind of the outputs, which `classes` names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return self.shape or (self.channels, self.image_size, self.image_size)

    def example(self) -> torch.Tensor:
        """Return a batch of one input, all zeros, of the type that the exported model takes."""
        return torch.zeros(1, *self.input_shape, dtype=INPUTS[self.inputs])

    def network(self, weights: dict[str, torch.Tensor], factory: Factory | None = None) -> nn.Module:
        """Return the network with these weights, from its inputs to class scores.

        `factory` makes a network that is not built in; without it an installed package must declare the network.
        """
        if self.model in MODELS:
            options = {option: getattr(self, option) for option in ARCHITECTURE}
            network = build_model(self.model, len(self.classes), channels=self.channels, **options)
        else:
            example = self.prepared(nn.Identity())(self.example())
            made = factory or self._installed()
            network = make_own_model(made, self.model, example, len(self.classes), self.name)
        load_untied(network, weights)
        return self.prepared(network).eval()

    def prepared(self, network: nn.Module) -> nn.Module:
        """Return the network with the preprocessing of its inputs."""
        return FromPixels(network, self.mean, self.std) if self.inputs == PIXELS else network

    def _installed(self) -> Factory:
        found = find_installed(self.model)
        if self.version and (found.package, found.version) != (self.package, self.version):
            was = f"{self.package} {self.version}"
            here = f"{found.package} {found.version}"
            warnings.warn(f"The model was trained with {was}, and {here} is installed here.", stacklevel=4)
        return found.factory()


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
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        needed = {field.name for field in fields(Package) if field.default is MISSING}  # older models lack the others
        known = {field.name for field in fields(Package)} & (content.keys() | needed)
        package = make(Package, {name: content[name] for name in known}, "entry")
        if package.inputs not in INPUTS:
            raise ValueError(f"inputs = {package.inputs!r} must be one of {', '.join(INPUTS)}")
        if package.targets not in (CLASSES, LABELS, VALUES):
            raise ValueError(f"targets = {package.targets!r} must be {CLASSES}, {LABELS} or {VALUES}")
        if package.inputs == PIXELS and {len(package.mean), len(package.std)} != {package.channels}:
            raise ValueError("mean and std must have a number for each channel")
        return package
    except FileNotFoundError:
        inside = [*folder.glob(f"model/{ABOUT}"), *sorted(folder.glob(f"model/*/{ABOUT}"))]
        advice = f"did you mean '{inside[0].parent}'?" if inside else "make one with `ffl export RUN --client K`."
        raise UserError(f"'{folder}' holds no exported model: {advice}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"'{folder / ABOUT}' is damaged ({error}): export the model again.") from None


def load_network(folder: Path | str, package: Package, factory: Factory | None = None) -> nn.Module:
    """Return the trained network, from its inputs to class scores; `factory` makes a network that is not built in."""
    folder = Path(folder)
    try:
        return package.network(safetensors.torch.load_file(folder / WEIGHTS), factory)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"'{folder / WEIGHTS}' does not fit its description ({reason}): export it again.") from None
