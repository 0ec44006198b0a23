"""IFCA: the server keeps several models; each client trains the one that fits its images best."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from factorized_fl.core.card import count_model
from factorized_fl.core.method import Method
from factorized_fl.core.mixing import group_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Cost, Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg

_CHOICE = "choice"


def _count_clusters(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """Count one model up and the models of all clusters down."""
    assert isinstance(method, IFCA)
    once = count_model(method, tensors, roles)
    return Cost(once.up, method.clusters * once.down)


@dataclass(frozen=True)
class IFCA(FedAvg):
    """The server keeps several models; each client trains and returns the one that fits its images best.

    A client computes the loss of every model on its training images and begins with the best one. Each model becomes
    the mean over the clients of the last round that chose it, weighted by images; in the paper all clients have equally
    many. Where labels disagree, the bodies are tried under the client's own classifier. The first model begins with the
    common weights, the others with the same weights in random order inside each tensor.
    """

    name = "ifca"
    card = card_of("ifca", cost=_count_clusters)
    mixes_first = True

    clusters: int = option(3, "k: number of models at the server", low=1)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """The number of the model that the client chose."""
        return {_CHOICE: torch.zeros(())}

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """The number of the model that the client chose."""
        return {_CHOICE: torch.zeros(())}

    def extra_down(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """All models but the first, which travels as the model."""
        names = [name for name in model if name in shared]
        return {f"{j}/{name}": model[name] for j in range(1, self.clusters) for name in names}

    @property
    def reads_images(self) -> bool:
        """True: the model is chosen by its loss on training images."""
        return True

    def receive(self, local: Local, given: Tensors) -> Tensors:
        """The model with the lowest loss on this client's images."""
        models = [given, *({n: local.extra[f"{j}/{n}"] for n in given} for j in range(1, self.clusters))]
        losses = [local.loss(model) for model in models]
        best = min(range(self.clusters), key=lambda j: losses[j] if math.isfinite(losses[j]) else math.inf)
        local.kept[_CHOICE].fill_(best)
        return models[best]

    def finish(self, local: Local) -> Tensors:
        """Sends the choice."""
        return {_CHOICE: local.kept[_CHOICE].clone()}

    def mix(self, server: Server) -> Mixing:
        """Returns all models; a client's weights are those of the clients that chose the same model."""
        choice = server.extra[_CHOICE].to(torch.int64).cpu()
        models = [self._begun(server, j) for j in range(self.clusters)]
        for j, model in enumerate(models):
            members = server.updated.cpu() & (choice == j)
            if members.any():
                mean = group_mean(choice, members, server.sizes)
                one = int(members.nonzero()[0])
                models[j] = {name: mean.apply(server.stack[name], [one])[0] for name in model}
        state = {f"{j}/{name}": tensor for j, model in enumerate(models) for name, tensor in model.items()}
        extra = {f"{j}/{n}": t[None] for j, model in enumerate(models[1:], 1) for n, t in model.items()}
        rows = {name: tensor[None] for name, tensor in models[0].items()}
        return Mixing(group_mean(choice, server.received, server.sizes), state=state, rows=rows, extra=extra)

    def _begun(self, server: Server, j: int) -> Tensors:
        """Model j as the state has it, or at its start."""
        model = {name: server.state.get(f"{j}/{name}", server.initial[name]) for name in server.stack}
        return model if server.state or j == 0 else {name: _shuffled(t, server.rng) for name, t in model.items()}


def _shuffled(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The entries of a tensor in random order: initial weights of the same distribution."""
    order = torch.from_numpy(rng.permutation(tensor.numel())).to(tensor.device)
    return tensor.flatten()[order].view_as(tensor)
