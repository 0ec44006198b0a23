"""APFL: each client tests a mixture of the shared model and of one that it trains beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.last_round import mean_of_last_round

_SHARE = "share"  # of the own model in the mixture, among what a client keeps


@dataclass(frozen=True)
class APFL(FedAvg):
    """FedAvg, and beside it a model v of each client; their mixture a v + (1 - a) w is tested.

    Each local step moves v along the gradient at the mixture, times a, and then w along its own gradient. The share a
    follows the gradient of the loss at the mixture, once in each round at its first step. The steps of v and a are
    plain SGD as in the paper, with the run's learning rate times `own_lr`.
    """

    name = "apfl"
    card = card_of("apfl")

    share: float = option(0.5, "a: share of the own model in the mixture, at first", low=0, high=1)
    adaptive: bool = option(True, "learn a")
    own_lr: float = option(1.0, "factor on the learning rate of v and a", above=0)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """The model v with running statistics of the mixture, the share a, and whether a was updated in this round."""
        own = {name: tensor.clone() for name, tensor in model.items()}
        return {**own, _SHARE: torch.tensor(self.share, dtype=torch.float64), "renewed": torch.zeros(())}

    @property
    def gradients_per_step(self) -> int:
        """Two: the gradients at the mixture and at the shared model."""
        return 2

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """Takes a step of v and of a, then returns the gradient of w."""
        kept, lr = local.kept, self.own_lr * local.lr
        share = float(kept[_SHARE])
        at = self._mixture(local, parameters)
        own = {name: tensor.requires_grad_(name in parameters) for name, tensor in at.items()}
        slope = local.loss_gradient(own, batches[0])
        with torch.no_grad():
            if self.adaptive and not kept["renewed"]:
                rise = sum(float(((kept[name] - parameters[name]) * slope[name]).double().sum()) for name in parameters)
                kept[_SHARE].sub_(lr * rise).clamp_(0, 1)
                kept["renewed"].fill_(1)
            for name in parameters:
                kept[name].sub_(slope[name], alpha=lr * share)
        return local.loss_gradient(parameters, batches[0])

    def finish(self, local: Local) -> Tensors:
        """Allows the next round to update a."""
        local.kept["renewed"].zero_()
        return {}

    @property
    def personal(self) -> bool:
        """True: the mixture is tested."""
        return True

    def tested(self, local: Local) -> Tensors:
        """The mixture, with the running statistics that it was trained with."""
        return self._mixture(local, {name: local.tensors[name] for name in local.trained})

    def _mixture(self, local: Local, parameters: Tensors) -> Tensors:
        """The parameters a v + (1 - a) w, and the running statistics that the client keeps for them."""
        share, kept = float(local.kept[_SHARE]), local.kept
        with torch.no_grad():
            mixed = {name: share * kept[name] + (1 - share) * parameters[name] for name in parameters}
        return {name: kept[name] for name, role in local.roles.items() if role.kind == "stat"} | mixed

    @property
    def reads_tensors(self) -> bool:
        """False: numbers of clients alone decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The plain mean over the clients of the last round."""
        return mean_of_last_round(server, torch.ones_like(server.sizes))
