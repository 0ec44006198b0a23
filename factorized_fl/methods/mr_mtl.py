"""MR-MTL: every client trains a model of its own, pulled towards the mean of all clients' models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MRMTL(FedAvg):
    """Each client keeps a model of its own, which is pulled towards the mean of all clients' models.

    The objective is F_k(w_k) + (pull / 2) ||w_k - mean||^2 over the shared parameters. The mean is what a client
    downloads; it never replaces the client's own model.
    """

    name = "mr-mtl"
    card = card_of("mr-mtl")
    capturable = True

    pull: float = option(0.1, "lambda: strength of the pull towards the mean", low=0)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """The mean model: at first the model that all clients begin with."""
        return {name: model[name].clone() for name in model if name in shared}

    def receive(self, local: Local, given: Tensors) -> Tensors:
        """Keeps the mean that was downloaded, and begins with the client's own model."""
        for name, mean in local.kept.items():
            mean.copy_(given[name])
        return {name: local.tensors[name] for name in given}

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient of the loss, and the pull on shared parameters."""
        gradient = local.loss_gradient(parameters, batches[0])
        for name in local.kept.keys() & gradient.keys():
            gradient[name] = gradient[name] + self.pull * (parameters[name] - local.kept[name])
        return gradient

    @property
    def reads_tensors(self) -> bool:
        """False: sizes and participation decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The plain mean over the clients."""
        return Mixing(weighted_mean(torch.ones_like(server.sizes), server.received))
