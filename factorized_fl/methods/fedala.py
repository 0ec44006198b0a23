"""FedALA: every client learns how much of the downloaded top layers to take, element by element."""

from dataclasses import dataclass
from itertools import islice

import torch

from factorized_fl.core.options import option
from factorized_fl.core.views import Local, Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.last_round import mean_of_last_round


@dataclass(frozen=True)
class FedALA(FedAvg):
    """Each client learns how much of the downloaded top layers to take, element by element.

    A client begins with own + (downloaded - own) * weights in its top layers, and with the download elsewhere. The
    weights lie in [0, 1] and step along the gradient of the loss on some training batches before every round: at a
    client's first download until they hardly change, later once over these batches.
    """

    name = "fedala"
    card = card_of("fedala")

    top: int = option(1, "p: the number of travelling layers, from the last, that have weights", low=1)
    step: float = option(1.0, "eta: learning rate of the weights", above=0)
    sample: int = option(2, "training batches that the weights are learned on", low=1)
    first_passes: int = option(10, "largest number of passes over these batches at the first download", low=1)
    tolerance: float = option(0.01, "the first passes end when no weight changed by more than this", low=0)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """The weights, and whether they were learned before."""
        travelling = [name for name in model if name in shared]
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in travelling))[-self.top :]
        ones = {name: torch.ones_like(model[name]) for name in travelling if name.rpartition(".")[0] in layers}
        return {**ones, "learned": torch.zeros(())}

    @property
    def reads_images(self) -> bool:
        """True: weights are learned on training images before a round."""
        return True

    def receive(self, local: Local, given: Tensors) -> Tensors:
        """Learns the weights, and returns the download with own tensors mixed in."""
        own = {name: local.tensors[name].clone() for name in given}
        weights = {name: tensor for name, tensor in local.kept.items() if name != "learned"}
        for _ in range(1 if local.kept["learned"] else self.first_passes):
            before = {name: tensor.clone() for name, tensor in weights.items()}
            for batch in islice(local.batches(), self.sample):
                begun = local.tensors | _mixed(own, given, weights)
                at = {name: begun[name].clone().requires_grad_() for name in local.trained}
                gradient = local.loss_gradient(at, batch)
                for name, weight in weights.items():
                    weight.sub_(self.step * gradient[name] * (given[name] - own[name])).clamp_(0, 1)
            if max(float((weights[name] - before[name]).abs().max()) for name in weights) <= self.tolerance:
                break
        local.kept["learned"].fill_(1)
        return _mixed(own, given, weights)

    @property
    def reads_tensors(self) -> bool:
        """False: sizes and participation decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The mean over the clients of the last round, weighted by their numbers of images."""
        return mean_of_last_round(server, server.sizes)


def _mixed(own: Tensors, given: Tensors, weights: Tensors) -> Tensors:
    """The tensors that a round begins with: the download, with own tensors mixed in where there are weights."""
    return given | {name: own[name] + (given[name] - own[name]) * weights[name] for name in weights}
