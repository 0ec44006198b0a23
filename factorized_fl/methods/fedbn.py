"""FedBN: the affine terms of normalisation layers stay with each client."""

from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import NORMS, Role
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg in which everything that belongs to normalisation layers stays with its client.

    Running statistics stay with each client in all methods here, so this differs from FedAvg in the affine terms only.
    Clients count by their numbers of images as in FedAvg; in the paper's algorithm they count alike.
    """

    name = "fedbn"
    card = card_of("fedbn")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """The model as it is; raises UserError if it has no normalisation layer."""
        if not any(isinstance(module, NORMS) for module in model.modules()):
            raise UserError(f"{self.name} keeps normalisation layers at home, but the network has none: use fedavg.")
        return model

    def shares(self, role: Role) -> bool:
        """All but the terms of normalisation layers."""
        return role.kind != "norm"
