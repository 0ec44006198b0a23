"""Aggregation over the clients of the last round, as in papers where the server keeps one global model."""

import torch

from factorized_fl.core.mixing import Mean, weighted_mean
from factorized_fl.core.views import Mixing, Server


def mean_of_last_round(server: Server, weights: torch.Tensor) -> Mixing:
    """The weighted mean over the clients that trained in the last round.

    After a round without updates the previous model is returned again: the state holds its weights.
    """
    row = server.state.get("row", weighted_mean(weights, server.received).row)
    if server.updated.any():
        row = weighted_mean(weights, server.updated).row
    return Mixing(Mean(row), state={"row": row})
