"""The paper's ablations of Factorized-FL (figure 8 g and h); each differs from it in one point."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from factorized_fl.core.options import option
from factorized_fl.core.views import Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.factorized import Factorized, count_factors, count_u
from factorized_fl.methods.factorized_fl import FactorizedFL
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.nn.factorized import LAYOUTS


@dataclass(frozen=True)
class FactorizedFedAvg(Factorized, FedAvg):
    """Factorised weights, all of them averaged over all clients: no matching."""

    name = "factorized-fedavg"
    card = card_of("factorized-fedavg", cost=count_factors)


@dataclass(frozen=True)
class WithoutMu(FactorizedFedAvg):
    """Factorized-FedAvg with weights of rank one, without the sparse rest."""

    name = "without-mu"
    card = card_of("without-mu", cost=count_factors)

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Factorises every layer without mu."""
        return self.factorise(model, generator, mu=False)


def _own_and(others: int, clients: int, order: np.ndarray, received: torch.Tensor) -> torch.Tensor:
    """Peers of each client: itself and the first `others` of its row of `order` that were received."""
    peers = torch.eye(clients, dtype=torch.bool)
    for client, row in enumerate(order):
        able = [other for other in row.tolist() if other != client and received[other]]
        peers[client, able[:others]] = True
    return peers


@dataclass(frozen=True)
class RandomMatching(FactorizedFL):
    """Factorized-FL with peers drawn at random in each round."""

    name = "random-matching"
    card = card_of("random-matching", cost=count_u)

    others: int = option(3, "number of peers besides the client itself", low=1)

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """The client itself and others at random."""
        count = len(similarity)
        order = np.stack([server.rng.permutation(count) for _ in range(count)])
        return _own_and(self.others, count, order, server.received)


@dataclass(frozen=True)
class WorstMatching(RandomMatching):
    """Factorized-FL with the least similar clients as peers."""

    name = "worst-matching"
    card = card_of("worst-matching", cost=count_u)

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """The client itself and the least similar others."""
        order = similarity.argsort(dim=1, stable=True).cpu().numpy()
        return _own_and(self.others, len(similarity), order, server.received)


@dataclass(frozen=True)
class MixedLayout(FactorizedFL):
    """Factorized-FL whose kernels are factorised as I*F x O*F matrices, so that u mixes channels and filter taps."""

    name = "mixed-layout"
    card = card_of("mixed-layout", cost=count_u)

    layout: str = option("mixed", "which matrix of a kernel has rank one", choices=LAYOUTS)
