"""Confusion matrices, counted in the same way by every engine."""

import torch


def empty_confusion(groups: int, classes: int, device: torch.device) -> torch.Tensor:
    """Return confusion matrices of zeros, int64 [G, C, C]: rows are true classes, columns are predicted classes."""
    return torch.zeros(groups, classes, classes, dtype=torch.int64, device=device)


def count_confusion(counts: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Add a batch, logits [G, B, C] and labels [G, B], to the counts in place; negative labels are ignored."""
    classes = counts.shape[1]
    pairs = labels.clamp(min=0) * classes + logits.argmax(2)
    counts.view(len(counts), -1).scatter_add_(1, pairs, (labels >= 0).to(counts.dtype))
