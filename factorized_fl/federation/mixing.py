"""Mixing matrices: K x K, non-negative, rows summing to 1; and their one use, ``mixing @ stack``."""

import torch


def weighted_mean(weights: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """Everybody receives the same weighted mean of those who have answered."""
    row = torch.where(received, weights, 0.0)
    return (row / row.sum()).expand(len(row), -1).clone()


def cosine(vectors: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of all pairs of rows (paper, Eq. 4), float64; a zero vector is similar to nobody."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return (unit @ unit.T).clamp(-1, 1)


def matched(
    similarity: torch.Tensor, received: torch.Tensor, *, tau: float, epsilon: float, minimum: int
) -> torch.Tensor:
    """Softmax of epsilon * similarity over the peers whose similarity reaches tau (paper, Eq. 4 and 5).

    A client is always its own peer, with similarity 1. `minimum` fills the peers up to that number, oneself
    included, with the most similar others; those who never answered are nobody's peers.
    """
    count = len(similarity)
    own = torch.eye(count, dtype=torch.bool, device=similarity.device)
    sigma = similarity.masked_fill(own, 1.0)
    candidates = received.expand(count, -1) | own
    reach = sigma.masked_fill(~candidates, -torch.inf)
    # Oneself comes first even when somebody else's vector is the same.
    rank = reach.masked_fill(own, torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    peers = candidates & ((sigma >= tau) | (rank < minimum) | own)
    return torch.softmax((epsilon * sigma).masked_fill(~peers, -torch.inf), dim=1)


def mix(matrix: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    """Personalised aggregation of one tensor for all rows of the matrix: a new tensor, the old one is only read."""
    flat = stacked.flatten(1)
    return (matrix.to(flat) @ flat).view(len(matrix), *stacked.shape[1:])
