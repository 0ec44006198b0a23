"""Classification of images with an exported model, by ONNX Runtime if it is installed, otherwise by PyTorch."""

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.folder import image_files, subfolders
from factorized_fl.data.images import Unreadable, decode_each
from factorized_fl.export.export import Scores, onnx_scores
from factorized_fl.export.package import ONNX, load_network, read_package

_BATCH = 64
RUNTIMES = ("auto", "onnx", "torch")


@dataclass(frozen=True)
class Prediction:
    """Every class with its probability for one image, most likely first."""

    image: Path
    classes: tuple[tuple[str, float], ...]


def predict(folder: Path, images: Sequence[Path], runtime: str = "auto") -> list[Prediction]:
    """Return predictions for images, also those in folders and their subfolders, in order; warn of unreadable ones."""
    package = read_package(folder)
    files = [file for image in images for file in _files(image)]
    unreadable: list[tuple[Path, Unreadable]] = []
    if not files:
        raise UserError("There is no image to classify: name image files, or a folder with some.")
    scores = find_runtime(folder, runtime)
    predictions = []
    for first in range(0, len(files), _BATCH):
        batch = files[first : first + _BATCH]
        decoded: list[tuple[Path, torch.Tensor]] = []
        for file, pixels in zip(batch, decode_each(batch, package.image_size, package.channels), strict=True):
            if isinstance(pixels, Unreadable):
                unreadable.append((file, pixels))
            else:
                decoded.append((file, torch.from_numpy(pixels.copy())))
        if decoded:
            with torch.no_grad():
                shares = torch.softmax(scores(torch.stack([pixels for _, pixels in decoded])).double(), dim=1)
            for (file, _), row in zip(decoded, shares, strict=True):
                order = row.argsort(descending=True, stable=True).tolist()
                predictions.append(Prediction(file, tuple((package.classes[c], float(row[c])) for c in order)))
    if not predictions:
        file, why = unreadable[0]
        raise UserError(f"None of the {len(unreadable)} images can be read; {file} {why}.")
    for file, why in unreadable:
        warnings.warn(f"{file} is left out, as it {why}.", stacklevel=2)
    return predictions


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


def find_runtime(folder: Path, runtime: str = "auto") -> Scores:
    """Return the model as a function from raw pixels to class scores."""
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
    return load_network(folder, package)
