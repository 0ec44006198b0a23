"""Classification of images with an exported model, by ONNX Runtime if it is installed, otherwise by PyTorch."""

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.folder import image_files, subfolders
from factorized_fl.data.images import Unreadable, decode_each
from factorized_fl.data.windows import windowing
from factorized_fl.export.onnx import Scores, onnx_scores
from factorized_fl.export.package import CLASSES, INPUTS, ONNX, PIXELS, VALUES, Package, load_network, read_package
from factorized_fl.nn.own import Factory

_BATCH = 64
RUNTIMES = ("auto", "onnx", "torch")


@dataclass(frozen=True)
class Prediction:
    """Every class or label with its probability for one input, most likely first; or numbers in the model's order."""

    image: Path  # or the .npy file
    classes: tuple[tuple[str, float], ...]
    row: int | None = None  # the position in a .npy file
    numbers: bool = False  # whether these are numbers, not probabilities


def predict(
    folder: Path, images: Sequence[Path], runtime: str = "auto", factory: Factory | None = None
) -> list[Prediction]:
    """Return predictions for images, also those in folders and their subfolders, in order; warn of unreadable ones.

    A file .npy holds a batch of inputs; a network that takes no pixels takes nothing else. `factory` makes a network
    that is neither built in nor declared by an installed package; ONNX Runtime does without it.
    """
    package = read_package(folder)
    if any(image.suffix == ".npy" for image in images) or package.inputs != PIXELS:
        return _predict_arrays(package, find_runtime(folder, runtime, factory), images)
    if len({*package.input_shape[1:]}) > 1:
        size = " x ".join(map(str, package.input_shape[1:]))
        raise UserError(f"This model takes images of {size} pixels, and files are cropped to squares: give .npy files.")
    files = [file for image in images for file in _files(image)]
    unreadable: list[tuple[Path, Unreadable]] = []
    if not files:
        raise UserError("There is no image to classify: name image files, or a folder with some.")
    scores = find_runtime(folder, runtime, factory)
    predictions = []
    for first in range(0, len(files), _BATCH):
        batch = files[first : first + _BATCH]
        decoded: list[tuple[Path, torch.Tensor]] = []
        with windowing(package.window):
            each = list(decode_each(batch, package.image_size, package.channels))
        for file, pixels in zip(batch, each, strict=True):
            if isinstance(pixels, Unreadable):
                unreadable.append((file, pixels))
            else:
                decoded.append((file, torch.from_numpy(pixels.copy())))
        if decoded:
            found = _ranked(package, scores, torch.stack([pixels for _, pixels in decoded]))
            numbers = package.targets == VALUES
            predictions += [
                Prediction(file, classes, None, numbers) for (file, _), classes in zip(decoded, found, strict=True)
            ]
    if not predictions:
        file, why = unreadable[0]
        raise UserError(f"None of the {len(unreadable)} images can be read; {file} {why}.")
    for file, why in unreadable:
        warnings.warn(f"{file} is left out, as it {why}.", stacklevel=2)
    return predictions


def _predict_arrays(package: Package, scores: Scores, files: Sequence[Path]) -> list[Prediction]:
    """Return predictions for the inputs in .npy files."""
    predictions = []
    for file in files:
        wanted = f"{INPUTS[package.inputs]} [N, {', '.join(map(str, package.input_shape))}]".removeprefix("torch.")
        try:
            inputs = torch.from_numpy(np.load(file, allow_pickle=False))
        except (OSError, ValueError, TypeError, EOFError) as error:
            raise UserError(f"'{file}' cannot be read ({error}): save an array {wanted} with numpy.save.") from None
        if inputs.dtype == torch.float64:
            inputs = inputs.float()
        if inputs.dtype != INPUTS[package.inputs] or tuple(inputs.shape[1:]) != package.input_shape:
            found = f"{inputs.dtype} {list(inputs.shape)}".removeprefix("torch.")
            raise UserError(f"'{file}' holds {found}, but this model takes {wanted}.")
        classes = [ranks for batch in inputs.split(_BATCH) if len(batch) for ranks in _ranked(package, scores, batch)]
        predictions += [Prediction(file, each, row, package.targets == VALUES) for row, each in enumerate(classes)]
    return predictions


def _ranked(package: Package, scores: Scores, inputs: torch.Tensor) -> list[tuple[tuple[str, float], ...]]:
    """Return the classes or labels of each input with their probabilities, most likely first; or its numbers."""
    with torch.no_grad():
        outputs = scores(inputs).double()
    if package.targets == VALUES:
        return [tuple(zip(package.classes, row, strict=True)) for row in outputs.tolist()]
    shares = torch.softmax(outputs, dim=1) if package.targets == CLASSES else torch.sigmoid(outputs)
    order = shares.argsort(dim=1, descending=True, stable=True).tolist()
    return [tuple((package.classes[c], float(row[c])) for c in ranks) for row, ranks in zip(shares, order, strict=True)]


def _files(path: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """Return the image, or all images in the folder; links back to a parent folder are not followed."""
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"There is no image '{path}'.")
        return [path]
    whole = path.resolve()
    if whole in above:
        return []
    return image_files(path) + [file for folder in subfolders(path) for file in _files(folder, (*above, whole))]


def find_runtime(folder: Path, runtime: str = "auto", factory: Factory | None = None) -> Scores:
    """Return the model as a function from its inputs to class scores."""
    package = read_package(folder)
    if runtime not in RUNTIMES:
        raise UserError(f"There is no runtime '{runtime}': choose {', '.join(RUNTIMES)}.")
    installed = importlib.util.find_spec("onnxruntime") is not None
    there = (folder / ONNX).exists()
    if runtime == "onnx" and not (installed and there):
        missing = 'pip install "factorized-fl[onnx]"' if there else "export the model again with ONNX installed"
        raise UserError(f"The model cannot be run by ONNX Runtime: {missing}, or use --runtime auto.")
    if runtime != "torch" and installed and there:
        return onnx_scores(folder / ONNX, package)
    return load_network(folder, package, factory)
