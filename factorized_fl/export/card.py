"""The model card: what the model is, what it was made from, how good it is, in plain words."""

import json
from collections.abc import Mapping

from factorized_fl.config import Config
from factorized_fl.export.package import Package
from factorized_fl.methods import METHODS
from factorized_fl.results.verdict import Verdict

_ONNX = """
    # In ONNX Runtime:
    import onnxruntime
    (scores,) = onnxruntime.InferenceSession("model.onnx").run(None, {"pixels": pixels})
"""


def card(
    package: Package,
    config: Config,
    trained: int,
    counts: Mapping[str, int],
    correct: int,
    total: int,
    verdict: Verdict | None,
    difference: float,
    onnx: bool,
) -> str:
    """The text of README.md."""
    method = METHODS[config.method]
    colour = "grey" if package.channels == 1 else "colour (RGB)"
    done = f"{trained}" if trained == config.rounds else f"{trained} of {config.rounds}"
    scored = f"{config.score} images of {package.name}"
    names = ", ".join(json.dumps(name, ensure_ascii=False) for name in package.classes)  # they may hold commas
    side = package.image_size
    files = "`model.safetensors` (PyTorch, dense)" + (" and `model.onnx` (from raw pixels to scores)" if onnx else "")
    return f"""# Model of {package.name}

A {config.model} (width {config.width:g}) for {len(package.classes)} classes: {names}.

Trained with {method.card.title} ({method.card.paper}), {done} rounds of {config.epochs} epochs with {config.clients}
parties, on {counts["train"]:,} images of {package.name} alone; nobody else saw them, nor these class names.

## How good it is

- On {total:,} {scored}: **{100 * correct / total:.2f}%** right ({correct:,} of {total:,}).
{_alone(package, verdict)}
- Measured on these images only: on other images it may do worse, and it answers one of its classes
  for whatever it is shown.

## How to use it

    ffl predict FOLDER IMAGES...    # for a program with --format json

    # From Python, inside this folder, with your images in place of this black one:
    import numpy
    pixels = numpy.zeros((1, {package.channels}, {side}, {side}), dtype=numpy.uint8)  # images, channels, height, width
{_ONNX if onnx else ""}
    # In PyTorch:
    import torch
    from factorized_fl.export.package import load_network, read_package
    scores = load_network(".", read_package("."))(torch.from_numpy(pixels)).detach()

Scores stand in the order of `classes` in model.json; their softmax are the probabilities. Before `ffl predict` asks
the model, images are cropped to their centre square, scaled to {side}x{side} pixels and taken as {colour}; inside the
model pixels are divided by 255, then shifted by {_numbers(package.mean)} and scaled by {_numbers(package.std)}.
{files} gave the trained model's scores on all {total:,} images, to {difference:.1e}.
"""


def _alone(package: Package, verdict: Verdict | None) -> str:
    if verdict is None:
        return "- It has not been compared with a model that was trained alone."
    word = {"helped": "the federation helped", "harmed": "the federation harmed"}.get(verdict.word)
    return (
        f"- A model trained alone, on the same images for as long: {100 * verdict.alone:.2f}%. "
        f"Difference {100 * verdict.difference:+.2f} points, standard error {100 * verdict.error:.2f}: "
        f"{word or 'no difference that this test could show'}."
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
