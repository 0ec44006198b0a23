"""Losses by name, and the caller's own: what local training minimises.

A loss of the caller is a function (outputs [B, C], targets) -> losses [B], or their mean. It takes the place of the
named losses in training and in tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from factorized_fl.core.errors import UserError
from factorized_fl.core.named import reason_of

OwnLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss in two forms: its mean over a batch, with weights of the classes if there are any, and its sum."""

    kind: str | None  # of the targets: "classes", "labels" or "numbers"; None for any
    mean: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    total: Callable[[Tensor, Tensor], Tensor]
    balanced: bool = False  # classes are weighted by the inverse of their numbers of training examples


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


_CROSS_ENTROPY = Loss(
    "classes",
    lambda outputs, targets, weights: F.cross_entropy(outputs, targets, weight=weights),
    lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="sum"),
)
LOSSES: Mapping[str, Loss] = {
    "cross-entropy": _CROSS_ENTROPY,
    "balanced-cross-entropy": Loss("classes", _CROSS_ENTROPY.mean, _CROSS_ENTROPY.total, balanced=True),
    "binary": Loss(
        "labels",
        lambda outputs, targets, weights: F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights),
        lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1).sum(),
    ),
    "squared-error": Loss(
        "numbers",
        lambda outputs, targets, weights: _squared_error(outputs, targets).mean(),
        lambda outputs, targets: _squared_error(outputs, targets).sum(),
    ),
}


def own_loss(name: str, function: OwnLoss) -> Loss:
    """Return the loss of a caller's function, whose results are checked at every call.

    Its `mean` and `total` raise UserError if the function fails or returns neither [B] losses nor their mean.
    """

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            found = function(outputs, targets)
        except Exception as error:  # foreign code may raise any error
            shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
            raise UserError(f"The loss {name} fails for {shapes} ({reason_of(error)}): correct it.") from error
        if not isinstance(found, Tensor) or found.shape not in ((), (len(outputs),)):
            got = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise UserError(f"The loss {name} returns {got}: return a tensor of {len(outputs)} losses, or their mean.")
        return found

    def mean(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        found = checked(outputs, targets).mean()
        if torch.is_grad_enabled() and not found.requires_grad:
            raise UserError(f"The loss {name} does not depend on the outputs by operations of torch: no gradient.")
        return found

    def total(outputs: Tensor, targets: Tensor) -> Tensor:
        found = checked(outputs, targets)
        return found.sum() if found.dim() else found * len(outputs)

    return Loss(None, mean, total)
