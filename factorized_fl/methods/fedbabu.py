"""FedBABU: only the body is trained in the rounds; the head is fine-tuned at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.method import Method
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Local, Mixing, Phase, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedper import body, head
from factorized_fl.methods.last_round import mean_of_last_round


@dataclass(frozen=True)
class FedBABU(Method):
    """Clients train and share the body under a head that keeps its initial weights, and fine-tune at the end.

    In all rounds but the last, what is tested is the body under the untrained head. After the last round each client
    trains `tune_epochs` on its own images: the whole model, as in the paper's main results, the head or the body.
    Clients count alike in the mean, as in the authors' code.
    """

    name = "fedbabu"
    card = card_of("fedbabu")

    tune_epochs: int = option(5, "epochs of fine-tuning after the last round", low=0)
    tune: str = option("all", "what is fine-tuned", choices=("all", "head", "body"))

    def shares(self, role: Role) -> bool:
        """Share the body."""
        return body(role)

    def phases(self) -> Sequence[Phase]:
        """The body trains, the head does not."""
        return (Phase("body", trains=body),)

    @property
    def personal(self) -> bool:
        """Whether the model is fine-tuned after the last round."""
        return bool(self.tune_epochs)

    @property
    def reads_images(self) -> bool:
        """Whether the model is fine-tuned after the last round."""
        return self.personal

    def tested(self, local: Local) -> Tensors:
        """The trained model, fine-tuned after the last round."""
        trains = {"all": None, "head": head, "body": body}[self.tune]
        phase = Phase("tune", self.tune_epochs, trains=trains)
        return local.tune(local.tensors, [phase]) if local.last else local.tensors

    @property
    def reads_tensors(self) -> bool:
        """False: numbers of clients alone decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The plain mean over the clients of the last round."""
        return mean_of_last_round(server, torch.ones_like(server.sizes))
