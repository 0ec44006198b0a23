"""FedAvgM: the server steps along the mean update with momentum."""

from dataclasses import dataclass

import torch

import factorized_fl as ffl


@ffl.register
@dataclass(frozen=True)
class FedAvgM(ffl.Method):
    """The server's model w becomes w - server_lr v, where v = beta v + the weighted mean of w - w_k.

    The mean is over the clients that trained in the last round; a round without any leaves w and v as they are.
    """

    name = "fedavgm"
    card = ffl.Card(
        "FedAvgM",
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019",
        travels="all but statistics",
        mixing="sample-weighted mean, with momentum",
    )

    beta: float = ffl.option(0.9, "momentum of the server", low=0, high=0.9999)
    server_lr: float = ffl.option(1.0, "the server's learning rate", above=0)

    def shares(self, role: ffl.Role) -> bool:
        return True

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        model = {name: server.state.get(f"model/{name}", server.initial[name]) for name in server.stack}
        momentum = {name: server.state.get(f"momentum/{name}", torch.zeros_like(model[name])) for name in model}
        mean = ffl.weighted_mean(server.sizes, server.updated if server.updated.any() else server.received)
        if server.updated.any():
            for name, stacked in server.stack.items():
                update = model[name] - mean.apply(stacked, [0])[0]
                momentum[name] = self.beta * momentum[name] + update
                model[name] = model[name] - self.server_lr * momentum[name]
        return ffl.Mixing(
            mean,
            state={f"{part}/{n}": t for part, of in (("model", model), ("momentum", momentum)) for n, t in of.items()},
            rows={name: tensor[None] for name, tensor in model.items()},
        )
