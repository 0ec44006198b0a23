"""Metrics of a model on one client's test examples, as functions of all outputs and targets, and their errors.

Each takes outputs [N, C] and targets, and returns a number, or NaN where it is undefined. Targets are classes [N], or
zeros and ones [N, C], or numbers [N, C]. All outputs are needed at once: an area under a curve is no sum over batches.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Compute = Callable[[Tensor, Tensor], float]

_GROUPS = 20  # parts of the test examples of which each is left out once to estimate a standard error


@dataclass(frozen=True)
class Metric:
    """A number by which models are compared: its name, its function of outputs and targets, and which side is better.

    Args:
        name: the name in tables and files.
        compute: (outputs [N, C], targets) -> number, for all test examples of a client.
        higher_is_better: False for errors: such a metric as the primary one is compared by its negative.
    """

    name: str
    compute: Compute
    higher_is_better: bool = True

    def score(self, value: float) -> float:
        """Return the value, or its negative if less is better: more of the score is always better."""
        return value if self.higher_is_better else -value


def standard_error_of(compute: Compute, outputs: Tensor, targets: Tensor) -> float:
    """Return the standard error of a metric by the jackknife over up to 20 groups of examples; NaN if it is unknown.

    Example i is in group i modulo 20, so the estimate draws no random numbers. A group without which the metric is
    undefined is left out.
    """
    count = min(_GROUPS, len(targets))
    group = torch.arange(len(targets)) % count
    values = [compute(outputs[group != g], targets[group != g]) for g in range(count)] if count > 1 else []
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return math.nan
    mean = math.fsum(known) / len(known)
    return math.sqrt((len(known) - 1) / len(known) * math.fsum((value - mean) ** 2 for value in known))


# -- classes


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose largest output is that of their class."""
    return float((outputs.argmax(1) == targets).double().mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes in the targets of the share of their examples classified right."""
    counts = confusion_of(outputs.argmax(1), targets, outputs.shape[1])
    present = counts.sum(1) > 0
    return float((counts.diagonal() / counts.sum(1))[present].mean())


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean F1 over the classes that occur in the targets or the predictions."""
    counts = confusion_of(outputs.argmax(1), targets, outputs.shape[1])
    sums = counts.sum(0) + counts.sum(1)
    return float((2 * counts.diagonal() / sums)[sums > 0].mean())


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over classes, each against the rest, of the area under the ROC curve; NaN with one class.

    With two classes that is the area for the difference of their outputs.
    """
    scores = outputs.double().softmax(1)
    if outputs.shape[1] == 2:
        return area_under_roc((outputs[:, 1] - outputs[:, 0]).double(), targets == 1)
    return _mean_known([area_under_roc(scores[:, c], targets == c) for c in range(outputs.shape[1])])


def confusion_of(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the number of examples by true class (rows) and predicted class, float64 [C, C]."""
    return torch.bincount(targets * classes + predicted, minlength=classes**2).view(classes, classes).double()


def area_under_roc(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs of a positive and a negative example in which the positive scores higher.

    Ties count half. NaN without positive or without negative examples.
    """
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2  # the mean rank of equal scores, from 1
    ups = int(positive.sum())
    pairs = ups * (len(scores) - ups)
    if not pairs:
        return math.nan
    return float((ranks[place][positive].sum() - ups * (ups + 1) / 2) / pairs)


# -- several labels for each example: an output above zero predicts its label


def label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of all labels of all examples that are predicted right."""
    return float(((outputs > 0) == (targets > 0.5)).double().mean())


def label_balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over labels of the balanced accuracy of predicting each."""
    two = torch.stack([-outputs, outputs], 2)
    columns = range(outputs.shape[1])
    return _mean_known([balanced_accuracy(two[:, c], (targets[:, c] > 0.5).long()) for c in columns])


def label_f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean F1 over the labels that occur in the targets or the predictions."""
    predicted, true = outputs > 0, targets > 0.5
    sums = predicted.sum(0) + true.sum(0)
    return float((2 * (predicted & true).sum(0) / sums)[sums > 0].double().mean())


def label_auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean area under the ROC curve over the labels that have positive and negative examples."""
    columns = range(outputs.shape[1])
    return _mean_known([area_under_roc(outputs[:, c], targets[:, c] > 0.5) for c in columns])


# -- numbers


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance that the outputs explain, at most 1; the mean over several targets."""
    errors = (outputs - targets).double().square().sum(0)
    spread = (targets - targets.mean(0)).double().square().sum(0)
    return _mean_known([float(1 - e / s) if s > 0 else math.nan for e, s in zip(errors, spread, strict=True)])


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute difference of outputs and targets."""
    return float((outputs - targets).double().abs().mean())


def root_mean_squared_error(outputs: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared difference of outputs and targets."""
    return float((outputs - targets).double().square().mean().sqrt())


def _mean_known(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _named(**functions: Compute) -> dict[str, Metric]:
    return {name.replace("_", "-"): Metric(name.replace("_", "-"), compute) for name, compute in functions.items()}


# By the kind of task; the first is the default.
METRICS: Mapping[str, Mapping[str, Metric]] = {
    "classes": _named(accuracy=accuracy, balanced_accuracy=balanced_accuracy, macro_f1=macro_f1, auroc=auroc),
    "labels": _named(
        accuracy=label_accuracy, balanced_accuracy=label_balanced_accuracy, macro_f1=label_f1, auroc=label_auroc
    ),
    "numbers": {
        "r2": Metric("r2", r2),
        "mae": Metric("mae", mean_absolute_error, higher_is_better=False),
        "rmse": Metric("rmse", root_mean_squared_error, higher_is_better=False),
    },
}
