"""FedALA: every client learns how much of the downloaded top layers to take, element by element."""

from dataclasses import dataclass
from itertools import islice

import torch

import factorized_fl as ffl


@ffl.register
@dataclass(frozen=True)
class FedALA(ffl.Method):
    """A client begins with own + (downloaded - own) * weights in its top layers, and with the download elsewhere.

    The weights lie in [0, 1] and step along the gradient of the loss on some training batches before every round: at a
    client's first download until they hardly change, later once over these batches.
    """

    name = "fedala"
    card = ffl.Card(
        "FedALA",
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023",
        local_step="learned local aggregation, then SGD",
        travels="all but statistics",
        mixing="sample-weighted mean",
    )

    top: int = ffl.option(1, "p: the number of travelling layers, from the last, that have weights", low=1)
    step: float = ffl.option(1.0, "eta: learning rate of the weights", above=0)
    sample: int = ffl.option(2, "training batches that the weights are learned on", low=1)
    first_passes: int = ffl.option(10, "at most so many passes over them at the first download", low=1)
    tolerance: float = ffl.option(0.01, "the first passes end when no weight changed by more than this", low=0)

    def shares(self, role: ffl.Role) -> bool:
        return True

    def keeps(self, model: ffl.Tensors, shared: frozenset[str]) -> ffl.Tensors:
        travelling = [name for name in model if name in shared]
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in travelling))[-self.top :]
        ones = {name: torch.ones_like(model[name]) for name in travelling if name.rpartition(".")[0] in layers}
        return {**ones, "learned": torch.zeros(())}

    def receive(self, local: ffl.Local, given: ffl.Tensors) -> ffl.Tensors:
        own = {name: local.tensors[name].clone() for name in given}
        weights = {name: tensor for name, tensor in local.kept.items() if name != "learned"}
        for _ in range(1 if local.kept["learned"] else self.first_passes):
            before = {name: tensor.clone() for name, tensor in weights.items()}
            for batch in islice(local.batches(), self.sample):
                begun = local.tensors | mixed(own, given, weights)
                at = {name: begun[name].clone().requires_grad_() for name in local.trained}
                gradient = local.loss_gradient(at, batch)
                for name, weight in weights.items():
                    weight.sub_(self.step * gradient[name] * (given[name] - own[name])).clamp_(0, 1)
            if max(float((weights[name] - before[name]).abs().max()) for name in weights) <= self.tolerance:
                break
        local.kept["learned"].fill_(1)
        return mixed(own, given, weights)

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        row = server.state.get("row", ffl.weighted_mean(server.sizes, server.received).row)
        if server.updated.any():  # otherwise the last weights give the last global model again
            row = ffl.weighted_mean(server.sizes, server.updated).row
        return ffl.Mixing(ffl.Mean(row), state={"row": row})


def mixed(own: ffl.Tensors, given: ffl.Tensors, weights: ffl.Tensors) -> ffl.Tensors:
    """The tensors that a round begins with: the download, with own tensors mixed in where there are weights."""
    return given | {name: own[name] + (given[name] - own[name]) * weights[name] for name in weights}
