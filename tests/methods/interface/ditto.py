"""Ditto: every client trains a personal model that is pulled towards the global model of the round."""

from collections.abc import Sequence
from dataclasses import dataclass

import factorized_fl as ffl


@ffl.register
@dataclass(frozen=True)
class Ditto(ffl.Method):
    """The personal objective is F_k(v) + (pull / 2) ||v - w||^2; w is the model that the client downloaded.

    The global model is trained as in FedAvg, over the clients of the last round. Parameters that stay at home have no
    global value and are not pulled.
    """

    name = "ditto"
    card = ffl.Card(
        "Ditto",
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021",
        local_step="SGD, then SGD + proximal pull on a personal model",
        travels="all but statistics",
        mixing="sample-weighted mean",
    )
    further_models = ("personal",)

    pull: float = ffl.option(0.1, "lambda: strength of the pull towards the global model", low=0)
    personal_epochs: int = ffl.option(1, "local epochs of the personal model", low=1)

    def shares(self, role: ffl.Role) -> bool:
        return True

    def phases(self) -> Sequence[ffl.Phase]:
        return (ffl.Phase("global"), ffl.Phase("personal", epochs=self.personal_epochs, model="personal"))

    def gradient(self, local: ffl.Local, parameters: ffl.Tensors, batches: Sequence[ffl.Batch]) -> ffl.Tensors:
        gradient = local.loss_gradient(parameters, batches[0])
        if local.phase.model == "personal":
            for name in local.shared & gradient.keys():
                gradient[name] = gradient[name] + self.pull * (parameters[name] - local.start[name])
        return gradient

    @property
    def personal(self) -> bool:
        return True

    def tested(self, local: ffl.Local) -> ffl.Tensors:
        return local.models["personal"]

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        row = server.state.get("row", ffl.weighted_mean(server.sizes, server.received).row)
        if server.updated.any():  # otherwise the last weights give the last global model again
            row = ffl.weighted_mean(server.sizes, server.updated).row
        return ffl.Mixing(ffl.Mean(row), state={"row": row})
