"""Rank-one plus sparse weights; Factorized-FL and its beta aggregate them among similar clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import cosine, in_place, similar_peers, softmax_over
from factorized_fl.core.options import option
from factorized_fl.methods.base import Batch, Cost, Local, Method, Mixing, Roles, Server, Tensors
from factorized_fl.methods.fingerprints import NAME as FINGERPRINT
from factorized_fl.methods.fingerprints import blur, likeness, make_room
from factorized_fl.nn import Role, factorize, last_body_v
from factorized_fl.nn.factorized import LAYOUTS, head_mu_xavier


@dataclass(frozen=True)
class Factorized(Method):
    """W = u v^T + mu, all of which travels."""

    paper = "Jeong and Hwang, Factorized-FL: Agnostic Personalized Federated Learning, 2022"
    side_by_side = True

    sparsity: float = option(5e-4, "lambda: weight of the L1 penalty and pruning threshold of mu", low=0)
    l1: bool = option(True, "let the L1 penalty have a gradient (the authors' code has none)")
    layout: str = option("taps", "which matrix of a kernel has rank one", choices=LAYOUTS)
    prune: str = option(
        "test", "zero |mu| < lambda when testing only, or for good at the end of each round", choices=("test", "round")
    )
    head: str = option(
        "share",
        "a classifier whose labels agree: share it, or reset it each round (authors' code)",
        choices=("share", "reset"),
    )
    head_mu: str = option(
        "zero", "the classifier's initial mu: zero, or Xavier (authors' code)", choices=("zero", "xavier")
    )

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Factorise every layer, the classifier included; |mu| < lambda counts as zero at evaluation."""
        factorize(model, layout=self.layout, threshold=self.sparsity, generator=generator)
        return head_mu_xavier(model, generator) if self.head_mu == "xavier" else model

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """Cross-entropy plus lambda * ||mu||_1 (paper, Eq. 6)."""
        gradient = local.loss_gradient(parameters, batches[0])
        if self.l1 and self.sparsity:
            for name, role in local.roles.items():
                if role.kind == "mu":
                    gradient[name] = gradient[name].add(parameters[name].sign(), alpha=self.sparsity)
        return gradient

    def finish(self, tensors: Tensors, roles: Roles) -> None:
        """Prune for good, if asked to: the test result is the same and mu travels sparse."""
        if self.prune == "round":
            for name, role in roles.items():
                if role.kind == "mu":
                    tensors[name].masked_fill_(tensors[name].abs() < self.sparsity, 0.0)

    def shares(self, role: Role) -> bool:
        """Everything."""
        return not self.resets(role)

    def resets(self, role: Role) -> bool:
        """The whole classifier, if asked to."""
        return self.head == "reset" and role.head

    def formula(self, tensors: Tensors, roles: Roles) -> Cost:
        """u, v and what survives of mu."""
        count = sum(tensors[name].numel() for name, role in roles.items() if role.kind in ("u", "v"))
        mu = [tensors[name] for name, role in roles.items() if role.kind == "mu"]
        count += int(sum((tensor.abs() >= self.sparsity).sum() for tensor in mu))
        return Cost(count, count)


@dataclass(frozen=True)
class FactorizedByImages(Factorized):
    """Clients are matched by what their images look like."""

    blur: float = option(0.0, "Gaussian noise on the statistics, in the units in which images vary", low=0)
    clip: float = option(10.0, "where the statistics are cut off, in the same units", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blur and not self.looks_at_images:
            raise UserError(f"blur = {self.blur} hides nothing where no statistics travel: set match=statistics.")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """With room for what the images look like."""
        model = super().parametrize(model, generator, labels_agree)
        return make_room(model) if self.looks_at_images else model

    @property
    def looks_at_images(self) -> bool:
        """Once, before training."""
        return True

    def hide(self, fingerprint: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Blur it, if asked to."""
        return blur(fingerprint, self.blur, self.clip, generator) if self.blur else fingerprint

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """What the images look like."""
        return tensors[FINGERPRINT]

    def formula(self, tensors: Tensors, roles: Roles) -> Cost:
        """All factors each way; the statistics up."""
        cost = super().formula(tensors, roles)
        return Cost(cost.up + (tensors[FINGERPRINT].numel() if self.looks_at_images else 0), cost.down)


@dataclass(frozen=True)
class FactorizedBySimilarity(FactorizedByImages):
    """Clients are matched by how similar their v are, or their images."""

    tau: float = option(0.5, "least similarity of a peer; the paper uses 0 to 0.75", low=-1, high=1)
    epsilon: float = option(10.0, "sharpness of the softmax over peers; the paper uses 1 to 20", low=0)
    minimum: int = option(1, "fewest peers, oneself included; the paper has no minimum", low=1)
    sequential: bool = option(False, "mix client after client, in place (authors' code)")
    match: str = option(
        "v",
        "what clients are matched by: v before the classifier (paper), or statistics of their images",
        choices=("v", "statistics"),
    )

    @property
    def looks_at_images(self) -> bool:
        """If they are matched by them."""
        return self.match == "statistics"

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """v of the layer before the classifier, or what the images look like."""
        return super().fingerprint(tensors, roles) if self.looks_at_images else tensors[last_body_v(roles)].flatten()

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """Whom each client listens to, bool [K, K]."""
        return similar_peers(similarity, server.received, self.tau, self.minimum)

    def mix(self, server: Server) -> Mixing:
        """Similar clients get more weight, dissimilar ones none."""
        assert server.fingerprints is not None
        prints = server.fingerprints
        similarity = likeness(prints, server.received) if self.looks_at_images else cosine(prints)
        matrix = softmax_over(self.peers(similarity, server), similarity, self.epsilon)
        if self.sequential:
            matrix = in_place(matrix, server.rng.permutation(list(server.clients)).tolist())
        return Mixing(matrix, similarity)


@dataclass(frozen=True)
class FactorizedFL(FactorizedBySimilarity):
    """Of the factors only u travels."""

    name = "factorized-fl"
    title = "Factorized-FL"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, norm; matching v up", "softmax of similarity above tau")
    published_gb: ClassVar[float | None] = 0.32

    def shares(self, role: Role) -> bool:
        """u; and the normalisation's affine terms, as the authors' code has it (the paper is silent)."""
        return role.kind in ("u", "norm") and super().shares(role)

    def formula(self, tensors: Tensors, roles: Roles) -> Cost:
        """All u each way, and v or the statistics up."""
        u = sum(tensors[name].numel() for name, role in roles.items() if role.kind == "u")
        matched = tensors[FINGERPRINT] if self.looks_at_images else tensors[last_body_v(roles)]
        return Cost(u + matched.numel(), u)


@dataclass(frozen=True)
class FactorizedFLBeta(FactorizedBySimilarity):
    """The same matching, but u, v and mu all travel."""

    name = "factorized-fl-beta"
    title = "Factorized-FL beta"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, v, mu, norm, bias", "softmax of similarity above tau")
    published_gb: ClassVar[float | None] = 18.25

    @property
    def fingerprint_is_shared(self) -> bool:
        """v does travel."""
        return not self.looks_at_images
