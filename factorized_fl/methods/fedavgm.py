"""FedAvgM: the server steps along the mean update with momentum."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum at the server.

    The server's model w becomes w - server_lr v, where v = beta v + the weighted mean of w - w_k over the clients that
    trained in the last round. A round without any leaves w and v as they are.
    """

    name = "fedavgm"
    card = card_of("fedavgm")

    beta: float = option(0.9, "momentum of the server", low=0, high=0.9999)
    server_lr: float = option(1.0, "the server's learning rate", above=0)

    def mix(self, server: Server) -> Mixing:
        """The server's own model, after a step along the mean update."""
        model = {name: server.state.get(f"model/{name}", server.initial[name]) for name in server.stack}
        momentum = {name: server.state.get(f"momentum/{name}", torch.zeros_like(model[name])) for name in model}
        mean = weighted_mean(server.sizes, server.updated if server.updated.any() else server.received)
        if server.updated.any():
            for name, stacked in server.stack.items():
                update = model[name] - mean.apply(stacked, [0])[0]
                momentum[name] = self.beta * momentum[name] + update
                model[name] = model[name] - self.server_lr * momentum[name]
        return Mixing(
            mean,
            state={f"{part}/{n}": t for part, of in (("model", model), ("momentum", momentum)) for n, t in of.items()},
            rows={name: tensor[None] for name, tensor in model.items()},
        )
