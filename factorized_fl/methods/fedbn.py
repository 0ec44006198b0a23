"""FedBN: the affine terms of normalisation layers stay with each client."""

from dataclasses import dataclass

from factorized_fl.core.roles import Role
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg in which everything that belongs to normalisation layers stays with its client.

    Running statistics stay with each client in all methods here, so this differs from FedAvg in the affine terms only.
    """

    name = "fedbn"
    card = card_of("fedbn")

    def shares(self, role: Role) -> bool:
        """All but the terms of normalisation layers."""
        return role.kind != "norm"
