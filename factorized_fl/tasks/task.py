"""The task of a federation: the loss that training minimises and the metrics by which models are compared.

Its kind says what targets are: "classes" are numbers of classes [N] and outputs their scores [N, C]; "labels" are
zeros and ones [N, C], for examples that have several labels; "numbers" are any numbers [N, C].
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.named import Brought, brought_or_imported, is_named, reason_of
from factorized_fl.core.views import Evaluated
from factorized_fl.tasks.losses import LOSSES, Loss, own_loss
from factorized_fl.tasks.metrics import METRICS, Metric, standard_error_of


@dataclass(frozen=True)
class Task:
    """Loss and metrics of all clients of a federation."""

    kind: str
    loss: Loss
    metrics: tuple[Metric, ...]  # the first is the primary one
    class_weights: tuple[float, ...] = ()

    @property
    def counts_only(self) -> bool:
        """Whether accuracy is the only metric: it needs the number of right answers and no outputs."""
        return self.metrics == (METRICS["classes"]["accuracy"],)

    def weights(self, classes: int, train_targets: Tensor) -> Tensor | None:
        """Return one client's weights of its classes in the loss, or None for equal ones.

        Those of "balanced-cross-entropy" are N / (C n) for a class with n of the client's N training examples of C
        classes, and 1 for a class without any.
        """
        if self.class_weights:
            return torch.tensor(self.class_weights)
        if not self.loss.balanced:
            return None
        counts = torch.bincount(train_targets, minlength=classes).float()
        present = counts > 0
        return torch.where(present, len(train_targets) / (present.sum() * counts.clamp_min(1)), 1.0)

    def evaluated(self, loss: float, outputs: Tensor, targets: Tensor) -> Evaluated:
        """Return the result of a test from all outputs and targets; raise UserError if a metric fails."""
        right = outputs.argmax(1) == targets if self.kind == "classes" else None
        correct = None if right is None else int(right.sum())
        values = {metric.name: _value(metric, outputs, targets) for metric in self.metrics}
        primary = self.metrics[0]
        if primary == METRICS["classes"]["accuracy"]:  # its counts say how certain it is
            return Evaluated(correct, len(targets), loss, right, values)
        error = standard_error_of(primary.compute, outputs, targets)
        return Evaluated(correct, len(targets), loss, None, values, primary.score(values[primary.name]), error)


def make_task(
    loss: str,
    metrics: Sequence[str],
    class_weights: Sequence[float],
    targets: Tensor,
    classes: Sequence[int],
    brought: Brought,
) -> Task:
    """Return the task of a run from its options, all clients' targets and their numbers of classes.

    `brought` may hold the caller's functions. Raise UserError for an unknown name, or for options that fit neither each
    other nor the targets.
    """
    kind = kind_of(targets)
    if loss in LOSSES:
        chosen = LOSSES[loss]
    elif is_named(loss):
        chosen = own_loss(loss, brought_or_imported("loss", loss, brought))
    else:
        raise unknown("loss", loss, LOSSES)
    if chosen.kind == "numbers" and kind == "labels":
        kind = "numbers"  # numbers that happen to be zeros and ones
    if chosen.kind not in (None, kind):
        raise UserError(f"loss = '{loss}' {_NEEDS[chosen.kind or '']}, but here targets are {_ARE[kind]}.")
    if class_weights and (loss not in LOSSES or chosen.kind == "numbers" or chosen.balanced):
        raise UserError(f"class_weights has no effect with loss = '{loss}': leave it out.")
    if class_weights and (odd := {count for count in classes if count != len(class_weights)}):
        raise UserError(
            f"class_weights has {len(class_weights)} numbers, but there are clients with {min(odd)} classes: "
            "give one for each, or use loss = 'balanced-cross-entropy'."
        )
    known = METRICS[kind]
    named = [_metric(name, known, brought.get("metrics", {})) for name in metrics] or [next(iter(known.values()))]
    if len({metric.name for metric in named}) < len(named):
        raise UserError(f"metrics = {list(metrics)} has a name twice: give each once.")
    return Task(kind, chosen, tuple(named), tuple(class_weights))


_NEEDS = {
    "classes": "needs the number of one class for each example",
    "labels": "needs zeros and ones [N, L] for L labels of each example",
    "numbers": "needs numbers as targets",
}
_ARE = {
    "classes": "whole numbers: use loss = 'cross-entropy'",
    "labels": "zeros and ones as floats: give classes as whole numbers, or use loss = 'binary'",
    "numbers": "other numbers: give classes as whole numbers, or use loss = 'squared-error'",
}


def kind_of(targets: Tensor) -> str:
    """Return the kind of targets: "classes" if they are whole numbers, "labels" if 0.0 and 1.0, else "numbers"."""
    if not targets.is_floating_point():
        return "classes"
    return "labels" if bool(((targets == 0) | (targets == 1)).all()) else "numbers"


def _metric(name: str, known: Mapping[str, Metric], brought: Mapping[str, Metric]) -> Metric:
    if name in brought:
        return brought[name]
    if name in known:
        return known[name]
    if is_named(name):
        found = brought_or_imported("metrics", name, {})
        return found if isinstance(found, Metric) else Metric(name, found)
    raise unknown("metric of this task", name, known)


def check_defined(metric: Metric, outputs: int, targets: Tensor, client: str) -> None:
    """Raise UserError, naming the client, if a built-in metric is undefined for the targets of its test examples."""
    if metric.name != "auroc" or metric not in (METRICS["classes"]["auroc"], METRICS["labels"]["auroc"]):
        return
    if math.isnan(metric.compute(torch.zeros(len(targets), outputs), targets)):
        raise UserError(
            f"The metric auroc is undefined for {client}, whose test examples are all of one class: "
            "choose another metric, or give this client other test examples."
        )


def check_functions(task: Task, outputs: int, targets: Tensor, client: str) -> None:
    """Raise UserError, naming the client, if a loss or metric of the caller fails for random outputs.

    They would fail in the first round otherwise.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(targets), outputs, generator=generator)
    try:
        if task.loss.kind is None:
            with torch.enable_grad():
                task.loss.mean(drawn.clone().requires_grad_(), targets, None)
        for metric in task.metrics:
            if metric not in METRICS[task.kind].values() and math.isnan(_value(metric, drawn, targets)):
                raise UserError(f"The metric {metric.name} returns nan for random outputs: correct it.")
    except UserError as error:
        raise UserError(f"{Exception.__str__(error).rstrip('.')}; this was tried for {client}.") from error


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    try:
        return float(metric.compute(outputs, targets))
    except Exception as error:  # foreign code may raise any error
        shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
        raise UserError(f"The metric {metric.name} fails for {shapes} ({reason_of(error)}): correct it.") from error
