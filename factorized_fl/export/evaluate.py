"""The clinical metrics of an exported model on images with known classes."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.columns import read_words
from factorized_fl.data.images import ImageSet
from factorized_fl.data.local_images import SPLITS, read_local_images
from factorized_fl.data.tables import read_image_table
from factorized_fl.data.windows import windowing
from factorized_fl.export.clinical_report import ClinicalReport, clinical_report
from factorized_fl.export.package import CLASSES, PIXELS, Package, read_package
from factorized_fl.export.predict import find_runtime
from factorized_fl.nn.own import Factory

_BATCH = 500


def check_threshold(threshold: float) -> float:
    """Return the threshold; raise UserError unless it is a probability above 0 and below 1."""
    if not 0 < threshold < 1:
        raise UserError(f"threshold = {threshold:g} must be a probability above 0 and below 1.")
    return threshold


def evaluate_model(
    folder: Path,
    data: Path,
    *,
    threshold: float = 0.5,
    image: str = "",
    label: str = "label",
    split: str = "",
    subgroups: Sequence[str] = (),
    runtime: str = "auto",
    factory: Factory | None = None,
) -> ClinicalReport:
    """Return the metrics of an exported model on test images, or on all images if they are not split.

    Raise UserError if the model takes no images or the images have a class that it does not know.

    Args:
        folder: the exported model.
        data: a folder of images per class, parquet files, or with `image` a table beside the images.
        threshold: the probability from which an image counts as positive for a class.
        image: the column of a table with the images.
        label: the column of a table with the classes.
        split: the column of a table with the words train, validation and test.
        subgroups: the columns of a table by whose values the metrics are divided.
        runtime: onnx, torch or auto.
        factory: makes a network that is neither built in nor declared by an installed package.
    """
    check_threshold(threshold)
    package = read_package(folder)
    refuse_other_targets(package, folder)
    if package.inputs != PIXELS or package.shape:
        raise UserError(f"The model in '{folder}' takes no square images, so it cannot be tested on those in '{data}'.")
    if not image and (split or subgroups):
        raise UserError(f"'{data}' has no columns without --image: name the column of images of a table.")
    with windowing(package.window):
        if image:
            images = read_image_table(
                data, image, label, split, size=package.image_size, channels=package.channels, classes=package.classes
            )
        else:
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
    if not len(chosen):
        raise UserError(f"'{data}' has no test images: name some 'test', or leave the column of the split out.")
    labels = _labels(package, images, data)[chosen]
    scores = scores_of(folder, images.images[chosen], runtime, factory)
    groups = {name: read_words(data, name)[chosen.numpy()].tolist() for name in subgroups}
    return clinical_report(scores, labels, package.classes, threshold, groups)


def refuse_other_targets(package: Package, folder: Path) -> None:
    """Raise UserError unless the model gives one class for each example."""
    if package.targets != CLASSES:
        raise UserError(f"The model in '{folder}' gives {package.targets}, and these metrics are those of classes.")


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
