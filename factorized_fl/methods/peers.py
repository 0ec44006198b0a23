"""Factorized-Peers: aggregate all tensors among clients whose images have similar statistics."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import Dense, weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.factorized import count_factors
from factorized_fl.methods.factorized_by_images import FactorizedByImages
from factorized_fl.methods.fingerprints import likeness, trust


def peer_weights(fingerprints: torch.Tensor, alike: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Rows that sum to 1: others weigh likeness times trust times images, the client itself weighs its images."""
    weights = alike * (trust(fingerprints, alike, sizes) * sizes)
    weights.diagonal().copy_(sizes)
    return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class FactorizedPeers(FactorizedByImages):
    """Clients share all tensors, weighted by how alike the statistics of their images are.

    There is no threshold, no number of peers and no number of groups.
    Clients whose statistics differ by no more than chance count by their numbers of images, so equal clients receive
    the global mean. A client that is unlike all others trains alone. Clients whose labels are much less informative
    than those of their peers are down-weighted.
    """

    name = "factorized-peers"
    card = card_of("factorized-peers", cost=count_factors)

    general: int = option(0, "number of first blocks of the network that are averaged over all clients", low=0)

    @property
    def reads_tensors(self) -> bool:
        """False: fingerprints and sizes decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """Weights by likeness; for the first blocks by numbers of images alone."""
        assert server.fingerprints is not None
        alike = likeness(server.fingerprints, server.received)
        matrix = peer_weights(server.fingerprints, alike, server.sizes)
        blocks = list(dict.fromkeys(name.split(".")[0] for name in server.stack))[: self.general]
        mean = weighted_mean(server.sizes, server.received)
        others = {name: mean for name in server.stack if name.split(".")[0] in blocks}
        return Mixing(Dense(matrix), alike, others=others)
