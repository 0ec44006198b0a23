"""The paper's ablations of Factorized-FL (figure 8 g and h), each one change away from it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.methods.base import Mixing, Server
from factorized_fl.methods.factorized import Factorized, FactorizedFL
from factorized_fl.nn import factorize
from factorized_fl.nn.factorized import LAYOUTS


@dataclass(frozen=True)
class FactorizedFedAvg(Factorized):
    """Factorised weights, everything averaged: no matching."""

    name = "factorized-fedavg"
    title = "Factorized-FedAvg"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, v, mu, norm, bias", "sample-weighted mean")

    def mix(self, server: Server) -> Mixing:
        """As FedAvg."""
        return Mixing(weighted_mean(server.sizes, server.received))


@dataclass(frozen=True)
class WithoutMu(FactorizedFedAvg):
    """Factorized-FedAvg whose weights have rank one and nothing else."""

    name = "without-mu"
    title = "Factorized-FedAvg w/o mu"
    row = ("u v^T", "SGD", "u, v, norm, bias", "sample-weighted mean")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Rank one, no sparse rest."""
        return factorize(model, layout=self.layout, mu=False, generator=generator)


def _themselves_and(others: int, clients: int, order: np.ndarray, received: torch.Tensor) -> torch.Tensor:
    """Peers: oneself and the first `others` of one's row of `order` that have answered."""
    peers = torch.eye(clients, dtype=torch.bool)
    for client, row in enumerate(order):
        able = [other for other in row.tolist() if other != client and received[other]]
        peers[client, able[:others]] = True
    return peers


@dataclass(frozen=True)
class RandomMatching(FactorizedFL):
    """Peers drawn at random each round."""

    name = "random-matching"
    title = "Random matching"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, norm; matching v up", "softmax over 3 random others")
    published_gb = None

    others: int = option(3, "peers besides oneself", low=1)

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """Oneself and some others, whoever they are."""
        count = len(similarity)
        order = np.stack([server.rng.permutation(count) for _ in range(count)])
        return _themselves_and(self.others, count, order, server.received)


@dataclass(frozen=True)
class WorstMatching(RandomMatching):
    """Peers are the least similar clients."""

    name = "worst-matching"
    title = "Worst matching"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, norm; matching v up", "softmax over the 3 least similar")

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """Oneself and the most dissimilar others."""
        order = similarity.argsort(dim=1, stable=True).cpu().numpy()
        return _themselves_and(self.others, len(similarity), order, server.received)


@dataclass(frozen=True)
class MixedLayout(FactorizedFL):
    """The kernel as an I*F x O*F matrix, so that u mixes channels and taps."""

    name = "mixed-layout"
    title = "Factorized-FL, I*F x O*F"
    row = ("u v^T + mu, I*F x O*F", "SGD + L1 on mu", "u, norm; matching v up", "softmax of similarity above tau")
    published_gb = None

    layout: str = option("mixed", "which matrix of a kernel has rank one", choices=LAYOUTS)
