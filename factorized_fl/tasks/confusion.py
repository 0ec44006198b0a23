"""Counting which class was taken for which: the same for every engine."""

import torch


def empty_confusion(groups: int, classes: int, device: torch.device) -> torch.Tensor:
    """Nothing counted yet, int64 [G, C, C]: true classes are rows, predicted ones columns."""
    return torch.zeros(groups, classes, classes, dtype=torch.int64, device=device)


def count_confusion(counts: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Add a batch, logits [G, B, C] and labels [G, B], to the counts, in place; a label below 0 does not count."""
    classes = counts.shape[1]
    pairs = labels.clamp(min=0) * classes + logits.argmax(2)
    counts.view(len(counts), -1).scatter_add_(1, pairs, (labels >= 0).to(counts.dtype))
