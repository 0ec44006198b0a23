"""FedAMP: each client is pulled towards a weighted mean that the server makes for it; similar clients weigh more."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import Dense, cosine
from factorized_fl.core.options import option
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.mr_mtl import MRMTL


@dataclass(frozen=True)
class FedAMP(MRMTL):
    """Each client is pulled towards a weighted mean of all models in which similar models weigh more.

    The weight of another model is step A'(d), where d is the squared distance and A'(d) = exp(-d / sigma) / sigma; the
    client's own weight is the rest. `weights=cosine` is the paper's HeurFedAMP for deep networks: the own weight is
    fixed, and the others share the rest by a softmax of sigma times their cosine.
    """

    name = "fedamp"
    card = card_of("fedamp")

    weights: str = option("cosine", "attention by distance, or by cosine (HeurFedAMP)", choices=("distance", "cosine"))
    sigma: float = option(25.0, "scale of the distance, or factor on the cosine", above=0)
    step: float = option(1.0, "alpha: factor on the weights of others by distance", above=0)
    own: float = option(0.5, "own weight with weights=cosine", low=0, high=1)

    @property
    def reads_tensors(self) -> bool:
        """True: the models decide the weights."""
        return True

    def mix(self, server: Server) -> Mixing:
        """The cloud model of each client, over the models that the server has received."""
        vectors = torch.cat([stacked[:, None].flatten(1) for stacked in server.stack.values()], 1)
        others = (server.received[:, None] & server.received).fill_diagonal_(False).cpu()
        similarity = cosine(vectors)
        if self.weights == "cosine":
            matrix = torch.softmax((self.sigma * similarity).masked_fill(~others, -torch.inf), 1)
            matrix = (1 - self.own) * matrix.nan_to_num(0.0)  # a client without others has no softmax
        else:
            square = torch.cdist(vectors.double(), vectors.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
            near = torch.exp(-square.cpu() / self.sigma) / self.sigma
            matrix = torch.where(others, self.step * near, 0.0)
            matrix = matrix / matrix.sum(1, keepdim=True).clamp_min(1.0)  # no own weight is negative
        matrix.diagonal().copy_(1 - matrix.sum(1))
        return Mixing(Dense(matrix), similarity)
