"""Aggregation that limits the influence of each single client on the others.

`clip`: the tensors x_j of client j move client k by w_kj (x_j - x_k). The distance of x_j from x_k is cut off at
the median of these distances over the other clients of the row. That only changes weights, and the row still sums to 1.
`median` and `trim`: each number is the median, or the mean without the largest and smallest fifth, over the clients
that weigh at least a tenth of the row's largest weight; these clients count the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from factorized_fl.core.mixing import Dense, Weights, dense
from factorized_fl.core.views import Mixing, Tensors

_COUNTS = 0.1  # of the row's largest weight, from which a client counts for a median
_TRIMMED = 0.2  # share of the clients left out on each side


def distances(stack: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The distance between the shared tensors of each pair of clients, float64 [K, K]; infinite where one diverged."""
    count = len(next(iter(stack.values())))
    square = torch.zeros(count, count, dtype=torch.float64)
    for stacked in stack.values():
        flat = stacked[:, None].flatten(1).double().cpu()
        square += torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    return square.sqrt().nan_to_num(torch.inf, torch.inf).fill_diagonal_(0.0)


def clip_rows(weights: Weights, apart: torch.Tensor, clients: Sequence[int]) -> Dense:
    """The weights of a row-wise clipping to the median distance, given all distances [K, K]."""
    matrix = dense(weights).double().cpu()
    for k in clients:
        others = matrix[k] > 0
        others[k] = False
        if not others.any():
            continue
        limit = apart[k][others].quantile(0.5, interpolation="lower")
        scale = torch.where(apart[k] > limit, limit / apart[k], 1.0).nan_to_num(0.0)
        row = torch.where(others, matrix[k] * scale, 0.0)
        row[k] = 1.0 - row.sum()
        matrix[k] = row
    return Dense(matrix)


def influences(matrix: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    """How far each client moves each receiver, w_kj |x_j - x_k|, as shares of the row's sum; float64 [K, K]."""
    moved = torch.where(matrix.double().cpu() > 0, matrix.double().cpu() * apart, 0.0).nan_to_num(0.0, posinf=0.0)
    return moved / moved.sum(1, keepdim=True).clamp_min(1e-300)


def clip_mixing(mixing: Mixing, stack: Tensors, clients: Sequence[int]) -> Mixing:
    """The mixing with clipped weights, and the influence of each client on each receiver."""
    apart = distances(stack)
    others = {name: clip_rows(weights, apart, clients) for name, weights in mixing.others.items()}
    weights = clip_rows(mixing.weights, apart, clients)
    return replace(mixing, weights=weights, others=others, influence=influences(weights.matrix, apart))


def robust_rows(kind: str, weights: Weights, stacked: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
    """Return the rows [n, ...] of one tensor for some clients: medians or trimmed means over the row's clients."""
    rows = weights.rows(clients)
    known: dict[tuple[int, ...], torch.Tensor] = {}
    found = []
    for row in rows:
        chosen = tuple((row >= _COUNTS * row.max()).nonzero().flatten().tolist())
        if chosen not in known:
            known[chosen] = _middle(kind, stacked[list(chosen)])
        found.append(known[chosen])
    return torch.stack(found)


def _middle(kind: str, values: torch.Tensor) -> torch.Tensor:
    """The median or trimmed mean over the first axis; a number that is not finite counts as the largest."""
    ordered = values.nan_to_num(torch.inf, torch.inf, -torch.inf).sort(0).values
    count = len(values)
    if kind == "median":
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    out = max(1, int(_TRIMMED * count)) if count > 2 else 0
    return ordered[out : count - out].mean(0)
