"""The weights of FedFOMO: how much each of several models lowers a client's loss, divided by its distance."""

import torch

from factorized_fl.core.roles import RUNNING
from factorized_fl.core.views import Server


def first_order_weights(server: Server, i: int, tried: list[int]) -> torch.Tensor | None:
    """First-order weights of the tried models; None if the loss of the baseline is not finite."""
    models = {name: torch.cat([server.start[name][[i]], stacked[tried]]) for name, stacked in server.stack.items()}
    losses = torch.tensor(server.validation_losses(i, models), dtype=torch.float64)
    if not losses[0].isfinite():
        return None
    square = torch.zeros(len(tried), dtype=torch.float64)
    for stacked in (tensors for name, tensors in models.items() if not name.endswith(RUNNING)):
        square = (stacked[1:] - stacked[0]).double()[:, None].flatten(1).square().sum(1) + square.to(stacked.device)
    weights = (losses[0] - losses[1:]) / (square.sqrt().cpu() + 1e-5)
    # A model that diverged has no usable loss and gets no weight.
    return weights.nan_to_num(0.0, 0.0, 0.0)
