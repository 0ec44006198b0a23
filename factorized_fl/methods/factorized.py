"""Factorized-FL and Factorized-FL beta: rank-one plus sparse weights, aggregated among similar clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.federation.mixing import cosine, matched
from factorized_fl.methods.base import Batch, Local, Method, Mixing, Server, Tensors
from factorized_fl.nn import Role, factorize, last_body_v
from factorized_fl.options import option

_PAPER = "Jeong and Hwang, Factorized-FL: Agnostic Personalized Federated Learning, 2022"


@dataclass(frozen=True)
class FactorizedFL(Method):
    """W = u v^T + mu; u travels, weighted by how similar the clients' v are."""

    name = "factorized-fl"
    title = "Factorized-FL"
    paper = _PAPER
    row = ("u v^T + mu", "SGD + L1 on mu", "u, norm; matching v up", "softmax of similarity above tau")

    tau: float = option(0.5, "least similarity of a peer; the paper uses 0 to 0.75", low=-1, high=1)
    epsilon: float = option(10.0, "sharpness of the softmax over peers; the paper uses 1 to 20", low=0)
    minimum: int = option(1, "fewest peers, oneself included; the paper has no minimum", low=1)
    sparsity: float = option(5e-4, "lambda: weight of the L1 penalty and pruning threshold of mu", low=0)
    l1: bool = option(True, "let the L1 penalty have a gradient (the authors' code has none)")

    def parametrize(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Factorise every layer, the classifier included; |mu| < lambda counts as zero at evaluation."""
        return factorize(model, threshold=self.sparsity, generator=generator)

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """Cross-entropy plus lambda * ||mu||_1 (paper, Eq. 6)."""
        gradient = local.loss_gradient(parameters, batches[0])
        if self.l1 and self.sparsity:
            for name, role in local.roles.items():
                if role.kind == "mu":
                    gradient[name] = gradient[name].add(parameters[name].sign(), alpha=self.sparsity)
        return gradient

    def shares(self, role: Role) -> bool:
        """u; and the normalisation's affine terms, as the authors' code has it (the paper is silent)."""
        return role.kind in ("u", "norm")

    def fingerprint(self, tensors: Tensors, roles: Mapping[str, Role]) -> torch.Tensor | None:
        """v of the layer before the classifier."""
        return tensors[last_body_v(roles)].flatten()

    def mix(self, server: Server) -> Mixing:
        """Similar clients get more weight, dissimilar ones none."""
        assert server.fingerprints is not None
        similarity = cosine(server.fingerprints)
        matrix = matched(similarity, server.received, tau=self.tau, epsilon=self.epsilon, minimum=self.minimum)
        return Mixing(matrix, similarity)


@dataclass(frozen=True)
class FactorizedFLBeta(FactorizedFL):
    """The same matching, but u, v and mu all travel."""

    name = "factorized-fl-beta"
    title = "Factorized-FL beta"
    row = ("u v^T + mu", "SGD + L1 on mu", "u, v, mu, norm, bias", "softmax of similarity above tau")
    fingerprint_is_shared = True

    def shares(self, role: Role) -> bool:
        """Everything."""
        return True
