"""FedRep: clients share a representation, the body, and train a head of their own on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import factorized_fl as ffl


@ffl.register
@dataclass(frozen=True)
class FedRep(ffl.Method):
    """Each round trains the head on the downloaded body, then the body under the new head.

    The server averages the bodies of the clients of the last round with equal weights.
    """

    name = "fedrep"
    card = ffl.Card(
        "FedRep",
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021",
        local_step="SGD on the head, then on the body",
        travels="body",
        mixing="plain mean",
    )

    head_epochs: int = ffl.option(5, "local epochs of the head, with the body frozen", low=1)
    body_epochs: int = ffl.option(1, "local epochs of the body, with the head frozen", low=1)

    def shares(self, role: ffl.Role) -> bool:
        return not role.head

    def phases(self) -> Sequence[ffl.Phase]:
        return (
            ffl.Phase("head", epochs=self.head_epochs, trains=lambda role: role.head),
            ffl.Phase("body", epochs=self.body_epochs, trains=lambda role: not role.head),
        )

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        equal = torch.ones_like(server.sizes)
        row = server.state.get("row", ffl.weighted_mean(equal, server.received).row)
        if server.updated.any():  # otherwise the last weights give the last body again
            row = ffl.weighted_mean(equal, server.updated).row
        return ffl.Mixing(ffl.Mean(row), state={"row": row})
