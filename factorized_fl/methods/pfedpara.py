"""pFedPara: weights W1 * (W2 + 1) of low rank; W1 is averaged factor by factor, W2 stays personal."""

from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.method import Method
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role, find_head
from factorized_fl.core.views import Cost, Roles, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.nn.lowrank import low_rank


def _count_shared(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """Count the shared tensors and BatchNorm's statistics, each way."""
    counted = (tensors[n] for n, role in roles.items() if method.shares(role) or role.kind == "stat")
    count = sum(tensor.numel() for tensor in counted if tensor.dim())
    return Cost(count, count)


@dataclass(frozen=True)
class PFedPara(FedAvg):
    """Weights are products of two low-rank matrices, one shared with all clients and one personal.

    The aggregation is FedAvg's. The classifier is left dense, and travels whole where labels agree.
    """

    name = "pfedpara"
    card = card_of("pfedpara", cost=_count_shared)

    gamma: float = option(
        0.95, "rank between the least (0) and the largest (1); 0.95 holds 93% of ResNet-9", low=0, high=1
    )
    capacity: float = option(0.0, "share of the dense size to fill instead of gamma; 0: use gamma", low=0, high=1)
    head: str = option(
        "dense", "a classifier that travels: dense and whole, or of low rank", choices=("low-rank", "dense")
    )

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Puts low rank on all layers except a classifier that stays at home or is configured to be dense."""
        skip = () if labels_agree and self.head == "low-rank" else (find_head(model),)
        return low_rank(model, gamma=self.gamma, capacity=self.capacity, skip=skip, generator=generator)

    def shares(self, role: Role) -> bool:
        """The shared halves, the normalisation, and a dense classifier with its bias; other biases stay at home."""
        return role.kind in ("w1", "norm") or (role.head and self.head == "dense")
