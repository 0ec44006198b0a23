"""FedProx: FedAvg with a pull towards what the round began with."""

from collections.abc import Sequence
from dataclasses import dataclass

from factorized_fl.core.options import option
from factorized_fl.methods.base import Batch, Local, Tensors
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Local objective: cross-entropy + (mu / 2) ||w - w_round||^2 over the shared parameters."""

    name = "fedprox"
    title = "FedProx"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, 2020"
    row = ("dense", "SGD + proximal pull", "all but statistics", "sample-weighted mean")
    side_by_side = True

    proximal: float = option(0.01, "mu: strength of the pull; the authors tune 0.001 to 1", low=0)

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The pull enters the gradient, so the momentum, too; what stays at home is not pulled."""
        gradient = local.loss_gradient(parameters, batches[0])
        for name in local.shared & gradient.keys():
            gradient[name] = gradient[name].add(parameters[name] - local.start[name], alpha=self.proximal)
        return gradient
