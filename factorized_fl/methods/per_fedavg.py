"""Per-FedAvg: meta-learn a starting point from which one step makes a good personal model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


def moved(parameters: Tensors, direction: Tensors, by: float) -> Tensors:
    """Parameters moved along a direction, as leaves that require a gradient."""
    with torch.no_grad():
        return {n: torch.add(p, direction[n], alpha=by).requires_grad_() for n, p in parameters.items()}


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """FedAvg of a start from which each client's own model is one gradient step away.

    Steps along the gradient of f(w - alpha grad f(w)), first-order or with a finite-difference Hessian product.
    beta is the run's learning rate. A first-order step consumes two batches and a Hessian-free one three; the run
    still makes `epochs` passes over the data, so there are half or a third as many steps, unless `compensate`
    multiplies the passes to give as many steps as the other methods make.
    """

    name = "per-fedavg"
    card = card_of("per-fedavg")
    side_by_side = True

    inner: float = option(1e-3, "alpha: size of the inner step", above=0)
    hessian_free: bool = option(False, "HF instead of FO: a finite difference for the Hessian's part")
    delta: float = option(1e-3, "step of that finite difference", above=0)
    compensate: bool = option(True, "as many steps as other methods, by more passes over the data")
    test: str = option(
        "trained",
        "what is tested: the locally trained model, as for all methods, or the round's start after one inner step",
        choices=("trained", "adapted"),
    )

    @property
    def batches_per_step(self) -> int:
        """Independent batches for each gradient."""
        return 3 if self.hessian_free else 2

    @property
    def passes(self) -> int:
        """The passes over an epoch's data."""
        return self.batches_per_step if self.compensate else 1

    @property
    def personal(self) -> bool:
        """Whether the protocol of the method's own paper is used."""
        return self.test == "adapted"

    @property
    def keeps_start(self) -> bool:
        """The adapted model is made from the one that the round began with."""
        return self.personal

    @property
    def gradients_per_step(self) -> int:
        """Gradients at the model, ahead of it, and for HF at two more points."""
        return 4 if self.hessian_free else 2

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient g(w - alpha g(w; D); D'), for HF minus alpha times the Hessian at w times that gradient."""
        first = local.loss_gradient(parameters, batches[0])
        outer = local.loss_gradient(moved(parameters, first, -self.inner), batches[1])
        if not self.hessian_free:
            return outer
        ahead = local.loss_gradient(moved(parameters, outer, self.delta), batches[2])
        behind = local.loss_gradient(moved(parameters, outer, -self.delta), batches[2])
        return {n: g - self.inner * (ahead[n] - behind[n]) / (2 * self.delta) for n, g in outer.items()}

    @property
    def reads_images(self) -> bool:
        """Whether the tested model is adapted on a training batch."""
        return self.personal

    def tested(self, local: Local) -> Tensors:
        """The model that the round began with, after one inner step on the round's first training batch."""
        parameters = {name: local.start[name].requires_grad_() for name in local.trained}
        gradient = local.loss_gradient(parameters, next(local.batches()))
        return local.start | moved(parameters, gradient, -self.inner)

    @property
    def reads_tensors(self) -> bool:
        """False: all clients count the same."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The plain mean over the clients."""
        return Mixing(weighted_mean(torch.ones_like(server.sizes), server.received))
