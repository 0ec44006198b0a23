"""pFedMe: personal models by Moreau envelopes, which the global model steps towards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.per_fedavg import moved


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Clients share a model w that steps towards their personal models, each of which stays near w.

    A local step finds the personal model theta, the minimum of the loss of its batch plus (pull / 2) ||theta - w||^2,
    by `inner_steps` gradient steps that begin at w, and moves w along pull (w - theta). The server's model becomes
    (1 - beta) w + beta times the mean over the clients of the last round.
    """

    name = "pfedme"
    card = card_of("pfedme")
    capturable = True

    pull: float = option(15.0, "lambda: how near personal models stay to the shared one", above=0)
    inner_steps: int = option(5, "K: gradient steps that find the personal model", low=1)
    inner_lr: float = option(0.01, "learning rate of these steps", above=0)
    beta: float = option(1.0, "share of the clients' mean in the server's model", above=0, high=2)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """Return the personal model."""
        return {name: tensor.clone() for name, tensor in model.items()}

    @property
    def gradients_per_step(self) -> int:
        """One gradient for each inner step."""
        return self.inner_steps

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient pull (w - theta) of the Moreau envelope; keeps theta as the personal model."""
        theta = parameters
        for _ in range(self.inner_steps):
            gradient = local.loss_gradient(theta, batches[0])
            with torch.no_grad():
                uphill = {n: gradient[n] + self.pull * (theta[n] - parameters[n]) for n in parameters}
            theta = moved(theta, uphill, -self.inner_lr)
        with torch.no_grad():
            for name, tensor in theta.items():
                local.kept[name].copy_(tensor)
            return {name: self.pull * (parameters[name] - theta[name]) for name in parameters}

    @property
    def personal(self) -> bool:
        """True: the personal model is tested."""
        return True

    def tested(self, local: Local) -> Tensors:
        """The personal model, with the running statistics that it was trained with."""
        return {name: local.kept[name] for name in local.trained}

    def mix(self, server: Server) -> Mixing:
        """The server's own model, moved towards the plain mean over the clients of the last round."""
        model = {name: server.state.get(name, server.initial[name]) for name in server.stack}
        here = server.updated if server.updated.any() else server.received
        mean = weighted_mean(torch.ones_like(server.sizes), here)
        if server.updated.any():
            for name, stacked in server.stack.items():
                model[name] = (1 - self.beta) * model[name] + self.beta * mean.apply(stacked, [0])[0]
        return Mixing(mean, state=model, rows={name: tensor[None] for name, tensor in model.items()})
