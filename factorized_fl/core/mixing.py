"""Mixing matrices: K x K, non-negative, rows summing to 1; and their one use, ``mixing @ stack``."""

from collections.abc import Sequence

import torch


def weighted_mean(weights: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """Everybody receives the same weighted mean of those who have answered."""
    row = torch.where(received, weights, 0.0)
    return (row / row.sum()).expand(len(row), -1).clone()


def group_mean(same: torch.Tensor, received: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Everybody receives the weighted mean of its group's members who have answered; nobody did: one's own."""
    members = torch.where(same & received, weights, 0.0)
    alone = members.sum(1) == 0
    members[alone, alone] = 1.0
    return members / members.sum(1, keepdim=True)


def cosine(vectors: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of all pairs of rows (paper, Eq. 4), float64 on the CPU, where matrices are made.

    A zero vector is similar to nobody, and one that is not finite is as unlike everybody as can be.
    """
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return (unit @ unit.T).nan_to_num(-1.0).clamp(-1, 1).cpu()


def similar_peers(similarity: torch.Tensor, received: torch.Tensor, tau: float, minimum: int) -> torch.Tensor:
    """Whose similarity reaches tau, filled up to `minimum` (oneself included) with the most similar (paper, Eq. 4).

    A client is always its own peer; those who never answered are nobody else's.
    """
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    candidates = received | own
    # Oneself comes first even when somebody else's vector is the same.
    ranked = similarity.masked_fill(~candidates, -torch.inf).masked_fill(own, torch.inf)
    rank = ranked.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return candidates & ((similarity >= tau) | (rank < minimum) | own)


def softmax_over(peers: torch.Tensor, similarity: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Softmax of epsilon * similarity over the peers; similarity to oneself counts as 1 (paper, Eq. 5)."""
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    sigma = similarity.masked_fill(own, 1.0)
    return torch.softmax((epsilon * sigma).masked_fill(~peers, -torch.inf), dim=1)


def in_place(matrix: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The matrix that mixing client by client amounts to when later ones read what earlier ones received."""
    effective = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for client in order:
        effective[client] = matrix[client] @ effective
    return effective


def mix(matrix: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    """Personalised aggregation of one tensor for all rows of the matrix: a new tensor, the old one is only read.

    Weight 0 means nothing at all, even of a client whose training diverged; who gives such a client weight is lost.
    """
    flat = stacked.flatten(1)
    weights, diverged = matrix.to(flat), ~flat.isfinite().all(1)
    mixed = weights @ flat.masked_fill(diverged[:, None], 0.0)  # 0 * nan would be nan
    mixed.masked_fill_(((weights != 0) & diverged).any(1)[:, None], torch.nan)
    return mixed.view(len(matrix), *stacked.shape[1:])
