"""pFedPara: weights W1 * (W2 + 1) of low rank; W1 is averaged factor by factor, W2 stays personal."""

from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.methods.base import Cost, Method, Mixing, Roles, Server, Tensors
from factorized_fl.nn import Role, find_head
from factorized_fl.nn.lowrank import low_rank


@dataclass(frozen=True)
class PFedPara(Method):
    """A classifier that stays at home is left dense."""

    name = "pfedpara"
    title = "pFedPara"
    paper = "Hyeon-Woo et al., FedPara: Low-rank Hadamard Product for Communication-Efficient Federated Learning, 2022"
    row = ("W1 * (W2 + 1), low rank", "SGD", "W1, norm", "sample-weighted mean")
    published_gb = 7.4

    gamma: float = option(
        0.95, "rank between the least (0) and the largest (1); 0.95 holds 93% of ResNet-9", low=0, high=1
    )
    capacity: float = option(0.0, "share of the dense size to fill instead of gamma; 0: use gamma", low=0, high=1)
    head: str = option(
        "low-rank", "a classifier that travels: of low rank, or dense and whole", choices=("low-rank", "dense")
    )

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Low rank everywhere, but for a classifier that would not travel or is to be dense."""
        skip = () if labels_agree and self.head == "low-rank" else (find_head(model),)
        return low_rank(model, gamma=self.gamma, capacity=self.capacity, skip=skip, generator=generator)

    def shares(self, role: Role) -> bool:
        """The shared halves and the normalisation, and a dense classifier with its bias; other biases stay."""
        return role.kind in ("w1", "norm") or (role.head and self.head == "dense")

    def formula(self, tensors: Tensors, roles: Roles) -> Cost:
        """What is shared and BatchNorm's statistics, each way."""
        counted = (tensors[n] for n, role in roles.items() if self.shares(role) or role.kind == "stat")
        count = sum(tensor.numel() for tensor in counted if tensor.dim())
        return Cost(count, count)

    def mix(self, server: Server) -> Mixing:
        """As FedAvg."""
        return Mixing(weighted_mean(server.sizes, server.received))
