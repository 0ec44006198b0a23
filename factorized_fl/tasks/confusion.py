"""Confusion matrices, counted in the same way by every engine."""

from torch import Tensor


def count_confusion(counts: Tensor, logits: Tensor, labels: Tensor) -> None:
    """Add a batch, logits [G, B, C] and labels [G, B], to matrices int64 [G, C, C] in place.

    Rows are true classes, columns are predicted classes; negative labels are ignored.
    """
    classes = counts.shape[1]
    pairs = labels.clamp(min=0) * classes + logits.argmax(2)
    counts.view(len(counts), -1).scatter_add_(1, pairs, (labels >= 0).to(counts.dtype))
