"""Factorized-Peers: share everything with those whose images look like one's own."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.methods.base import SETTLE, Mixing, Server
from factorized_fl.methods.factorized import FactorizedByImages
from factorized_fl.methods.fingerprints import likeness, trust


def peer_weights(fingerprints: torch.Tensor, alike: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Rows that sum to 1: everybody by likeness, trust in its labels and images; oneself by images alone."""
    weights = alike * (trust(fingerprints, alike, sizes) * sizes)
    weights.diagonal().copy_(sizes)
    return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class FactorizedPeers(FactorizedByImages):
    """Weights by likeness of the clients' images: no threshold, no number of peers, no number of groups.

    Clients that chance can explain count by their images, so that equal clients end in the global mean; one that is
    like nobody trains alone; one whose labels tell much less than those of its like counts little.
    """

    name = "factorized-peers"
    title = "Factorized-Peers"
    paper = "ours"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, v, mu, norm, bias; statistics up", "likeness of images, trust, size")

    settle: bool = option(True, SETTLE)
    general: int = option(0, "first blocks of the network that are shared with everybody", low=0)

    def mix(self, server: Server) -> Mixing:
        """Peers by likeness; the first blocks by size alone."""
        assert server.fingerprints is not None
        alike = likeness(server.fingerprints, server.received)
        matrix = peer_weights(server.fingerprints, alike, server.sizes)
        blocks = list(dict.fromkeys(name.split(".")[0] for name in server.stack))[: self.general]
        everybody = weighted_mean(server.sizes, server.received)
        others = {name: everybody for name in server.stack if name.split(".")[0] in blocks}
        return Mixing(matrix, alike, others=others)
