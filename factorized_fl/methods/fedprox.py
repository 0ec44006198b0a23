"""FedProx: FedAvg with a pull towards the parameters that the round began with."""

from collections.abc import Sequence
from dataclasses import dataclass

from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local training is pulled towards the model that the round began with.

    The local objective is cross-entropy + (mu / 2) ||w - w_round||^2 over the shared parameters.
    """

    name = "fedprox"
    card = card_of("fedprox")
    side_by_side = True

    proximal: float = option(0.01, "mu: strength of the pull; the authors tune 0.001 to 1", low=0)

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The pull is part of the gradient and so of the momentum; parameters that stay at home are not pulled."""
        gradient = local.loss_gradient(parameters, batches[0])
        for name in local.shared & gradient.keys():
            gradient[name] = gradient[name].add(parameters[name] - local.start[name], alpha=self.proximal)
        return gradient
