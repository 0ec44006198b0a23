"""FedRep: clients share a representation, the body, and train a head of their own on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.method import Method
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Mixing, Phase, Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.last_round import mean_of_last_round


@dataclass(frozen=True)
class FedRep(Method):
    """Clients share a body; each trains its head on the downloaded body, then the body under the new head.

    The server averages the bodies of the clients of the last round with equal weights.
    """

    name = "fedrep"
    card = card_of("fedrep")

    head_epochs: int = option(5, "local epochs of the head, with the body frozen", low=1)
    body_epochs: int = option(1, "local epochs of the body, with the head frozen", low=1)

    def shares(self, role: Role) -> bool:
        """Share the body."""
        return not role.head

    def phases(self) -> Sequence[Phase]:
        """The head trains first, then the body."""
        return (
            Phase("head", epochs=self.head_epochs, trains=lambda role: role.head),
            Phase("body", epochs=self.body_epochs, trains=lambda role: not role.head),
        )

    @property
    def reads_tensors(self) -> bool:
        """False: sizes and participation decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The plain mean over the clients of the last round."""
        return mean_of_last_round(server, torch.ones_like(server.sizes))
