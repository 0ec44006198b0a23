"""The clinical metrics of an exported model on images with known classes."""

import warnings
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.images import ImageSet
from factorized_fl.data.local_images import SPLITS, read_local_images
from factorized_fl.export.clinical_report import ClinicalReport, clinical_report
from factorized_fl.export.package import PIXELS, Package, read_package
from factorized_fl.export.predict import find_runtime
from factorized_fl.nn.own import Factory

_BATCH = 500


def check_threshold(threshold: float) -> float:
    """Return the threshold; raise UserError unless it is a probability above 0 and below 1."""
    if not 0 < threshold < 1:
        raise UserError(f"threshold = {threshold:g} must be a probability above 0 and below 1.")
    return threshold


def evaluate_model(
    folder: Path, data: Path, *, threshold: float = 0.5, runtime: str = "auto", factory: Factory | None = None
) -> ClinicalReport:
    """Return the metrics of an exported model on the test images of a folder, or on all if they are not split.

    Raise UserError if the model takes no images or the images have a class that it does not know.
    """
    check_threshold(threshold)
    package = read_package(folder)
    if package.inputs != PIXELS or package.shape:
        raise UserError(f"The model in '{folder}' takes no square images, so it cannot be tested on those in '{data}'.")
    images = read_local_images(data, data.resolve().name, size=package.image_size, channels=package.channels)
    chosen = torch.arange(len(images))
    if images.split is None:
        warnings.warn(
            f"'{data}' has no test images of its own, so all {len(images):,} are used: if some trained the model, the "
            "metrics are too good. For a site's model give its kit.",
            stacklevel=2,
        )
    else:
        chosen = chosen[images.split == SPLITS.index("test")]
    labels = _labels(package, images, data)[chosen]
    scores = scores_of(folder, images.images[chosen], runtime, factory)
    return clinical_report(scores, labels, package.classes, threshold)


@torch.no_grad()
def scores_of(
    folder: Path, inputs: torch.Tensor, runtime: str = "auto", factory: Factory | None = None
) -> torch.Tensor:
    """Return the class scores that an exported model gives to these inputs."""
    network = find_runtime(folder, runtime, factory)
    return torch.cat([network(batch) for batch in inputs.split(_BATCH)])


def _labels(package: Package, images: ImageSet, data: Path) -> torch.Tensor:
    """Return the labels as the model numbers its classes."""
    used = {images.classes[label] for label in images.labels.unique().tolist()}
    if strange := sorted(used - set(package.classes)):
        raise UserError(
            f"'{data}' has images of the class '{strange[0]}', which the model does not know: it knows "
            f"{', '.join(package.classes)}."
        )
    own = torch.tensor([package.classes.index(name) if name in used else -1 for name in images.classes])
    return own[images.labels]
