"""Ditto: every client trains a personal model that is pulled towards the global model of the round."""

from collections.abc import Sequence
from dataclasses import dataclass

from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Phase, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.last_round import mean_of_last_round


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and beside it a personal model of each client that is pulled towards the global one.

    The personal objective is F_k(v) + (pull / 2) ||v - w||^2; w is the model that the client downloaded. The global
    model is averaged over the clients of the last round. Parameters that stay at home have no global value and are not
    pulled.
    """

    name = "ditto"
    card = card_of("ditto")
    capturable = True
    further_models = ("personal",)

    pull: float = option(0.1, "lambda: strength of the pull towards the global model", low=0)
    personal_epochs: int = option(1, "local epochs of the personal model", low=1)

    def phases(self) -> Sequence[Phase]:
        """The global model trains first, then the personal one."""
        return (Phase("global"), Phase("personal", epochs=self.personal_epochs, model="personal"))

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient of the loss; in the personal model's phase the pull is added."""
        gradient = local.loss_gradient(parameters, batches[0])
        if local.phase.model == "personal":
            for name in local.shared & gradient.keys():
                gradient[name] = gradient[name] + self.pull * (parameters[name] - local.start[name])
        return gradient

    @property
    def personal(self) -> bool:
        """True: the personal model is tested."""
        return True

    def tested(self, local: Local) -> Tensors:
        """Return the personal model."""
        return local.models["personal"]

    @property
    def reads_tensors(self) -> bool:
        """False: sizes and participation decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The mean over the clients of the last round, weighted by their numbers of images."""
        return mean_of_last_round(server, server.sizes)
