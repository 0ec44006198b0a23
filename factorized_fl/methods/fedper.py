"""FedPer: clients share the body of the network and keep a head of their own."""

from dataclasses import dataclass

from factorized_fl.core.roles import Role
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of the body, with a head for each client that stays at home.

    Body and head train together. FedAvg here keeps classifiers at home wherever labels disagree, so there the two are
    one method.
    """

    name = "fedper"
    card = card_of("fedper")

    def shares(self, role: Role) -> bool:
        """The body."""
        return not role.head
