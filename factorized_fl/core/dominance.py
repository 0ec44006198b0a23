"""How many other clients a download really mixes, and the minimum below which a client receives its own tensors.

A client knows its own tensors and can subtract them from what it receives. So the guard counts the other clients: a row
with the weights 0.5 for the client itself and 0.5 for one other client reveals the tensors of the other.
"""

from collections.abc import Sequence

import torch

from factorized_fl.core.mixing import Dense, Weights, dense, own_tensors

_BLOCK = 256  # rows of weights that are made at once


def effective_peers(weights: Weights, clients: Sequence[int]) -> torch.Tensor:
    """The number of effective peers of some clients, float64 [n]: 0 for a client that receives its own tensors.

    It is 1 / sum of squared weights of the other clients, after these are scaled to sum to 1: n for n equal peers, near
    1 if one peer dominates. A share of the other clients below a billionth counts as none.
    """
    found = []
    for first in range(0, len(clients), _BLOCK):
        some = list(clients[first : first + _BLOCK])
        rows = weights.rows(some).double().cpu().clone()
        rows[torch.arange(len(some)), some] = 0.0
        total, squares = rows.sum(1), rows.square().sum(1)
        found.append(torch.where(total > 1e-9, total.square() / squares.where(squares > 0, 1.0), 0.0))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def others_share(weights: Weights, clients: Sequence[int]) -> torch.Tensor:
    """The sum of the weights of all other clients in what some clients receive, float64 [n], from 0 to 1."""
    found = []
    for first in range(0, len(clients), _BLOCK):
        some = list(clients[first : first + _BLOCK])
        rows = weights.rows(some).double().cpu().clone()
        rows[torch.arange(len(some)), some] = 0.0
        found.append(rows.sum(1))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def keep_own_below(weights: Weights, clients: Sequence[int], minimum: float) -> Weights:
    """The weights with which clients that have fewer effective peers than `minimum` keep their own tensors."""
    peers = effective_peers(weights, clients)
    below = [k for k, count in zip(clients, peers.tolist(), strict=True) if 0 < count < minimum]
    if not below:
        return weights
    if len(below) == weights.count:
        return own_tensors(weights.count)
    matrix = dense(weights)
    matrix[below] = torch.eye(weights.count, dtype=matrix.dtype, device=matrix.device)[below]
    return Dense(matrix)
