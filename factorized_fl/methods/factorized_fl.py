"""Factorized-FL and its variant beta: rank-one plus sparse weights are aggregated among similar clients."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import Dense, cosine, in_place, similar_peers, softmax_over
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role, last_body_v
from factorized_fl.core.views import Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.factorized import count_factors, count_u
from factorized_fl.methods.factorized_by_images import FactorizedByImages
from factorized_fl.methods.fingerprints import likeness


@dataclass(frozen=True)
class FactorizedBySimilarity(FactorizedByImages):
    """Clients are matched by the similarity of their v, or of their images."""

    tau: float = option(0.5, "least similarity of a peer; the paper uses 0 to 0.75", low=-1, high=1)
    epsilon: float = option(10.0, "sharpness of the softmax over peers; the paper uses 1 to 20", low=0)
    minimum: int = option(1, "smallest number of peers, the client itself included; the paper has no minimum", low=1)
    sequential: bool = option(False, "mix one client after the other, in place (authors' code)")
    match: str = option(
        "v",
        "match clients by v of the layer before the classifier (paper) or by statistics of their images",
        choices=("v", "statistics"),
    )

    @property
    def looks_at_images(self) -> bool:
        """Whether clients are matched by statistics of their images."""
        return self.match == "statistics"

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """The v of the layer before the classifier, or the statistics of the client's images."""
        return super().fingerprint(tensors, roles) if self.looks_at_images else tensors[last_body_v(roles)].flatten()

    @property
    def reads_tensors(self) -> bool:
        """Whether clients are matched by v, which is one of the shared tensors or read from them."""
        return not self.looks_at_images

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """The peers of each client, bool [K, K]."""
        return similar_peers(similarity, server.received, self.tau, self.minimum)

    def mix(self, server: Server) -> Mixing:
        """A softmax of the similarity over each client's peers; other clients get weight zero."""
        assert server.fingerprints is not None
        prints = server.fingerprints
        similarity = likeness(prints, server.received) if self.looks_at_images else cosine(prints)
        matrix = softmax_over(self.peers(similarity, server), similarity, self.epsilon)
        if self.sequential:
            matrix = in_place(matrix, server.rng.permutation(list(server.clients)).tolist())
        return Mixing(Dense(matrix), similarity)


@dataclass(frozen=True)
class FactorizedFL(FactorizedBySimilarity):
    """Weights are u v^T + mu; clients with similar v share u, and keep v and the sparse mu to themselves."""

    name = "factorized-fl"
    card = card_of("factorized-fl", cost=count_u)

    def shares(self, role: Role) -> bool:
        """u, and the affine terms of normalisation as in the authors' code (the paper does not mention them)."""
        return role.kind in ("u", "norm") and super().shares(role)


@dataclass(frozen=True)
class FactorizedFLBeta(FactorizedBySimilarity):
    """Factorized-FL in which similar clients share all of u, v and mu."""

    name = "factorized-fl-beta"
    card = card_of("factorized-fl-beta", cost=count_factors)

    @property
    def fingerprint_is_shared(self) -> bool:
        """Whether clients are matched by v, one of the shared tensors."""
        return not self.looks_at_images
