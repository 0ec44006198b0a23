"""SCAFFOLD: control variates at the server and at every client correct the drift of local training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from factorized_fl.core.card import count_model
from factorized_fl.core.method import Method
from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Cost, Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


def _count_twice(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """The model and a control variate of its size, each way."""
    once = count_model(method, tensors, roles)
    return Cost(2 * once.up, 2 * once.down)


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg in which control variates correct the drift of local training.

    Local steps follow g - c_k + c; after them c_k becomes c_k - c + (x - y_k) / (steps lr), the paper's option II. The
    paper's local step is plain SGD: with momentum, the last term is no longer the mean of the gradients.
    """

    name = "scaffold"
    card = card_of("scaffold", cost=_count_twice)
    capturable = True

    server_lr: float = option(1.0, "eta_g: the server's step along the clients' mean update", above=0)

    def keeps(self, model: Tensors, shared: frozenset[str]) -> Tensors:
        """The client's control variate c_k."""
        return {name: torch.zeros_like(model[name]) for name in model if name in shared}

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """Return the change of c_k."""
        return {name: model[name] for name in model if name in shared}

    def extra_down(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """The server's control variate c."""
        return self.extra_up(model, shared, roles)

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient g - c_k + c; parameters that stay at home follow g."""
        gradient = local.loss_gradient(parameters, batches[0])
        corrected = {name: gradient[name] - local.kept[name] + local.extra[name] for name in local.kept}
        return gradient | corrected

    def finish(self, local: Local) -> Tensors:
        """Updates c_k and returns its change."""
        if not local.steps:  # no step was taken because a privacy budget is spent
            return {name: torch.zeros_like(control) for name, control in local.kept.items()}
        changes = {}
        for name, control in local.kept.items():
            moved = local.start[name] - local.tensors[name]
            changes[name] = moved / (local.steps * local.lr) - local.extra[name]
            control.add_(changes[name])
        return changes

    def mix(self, server: Server) -> Mixing:
        """The server's own model after a step along the mean update, and its control variate."""
        model = {name: server.state.get(f"model/{name}", server.initial[name]) for name in server.stack}
        control = {name: server.state.get(f"control/{name}", torch.zeros_like(model[name])) for name in model}
        here = server.updated
        if here.any():
            share = float(here.double().mean())
            for name in model:
                model[name] = model[name] + self.server_lr * (server.stack[name][here].mean(0) - model[name])
                control[name] = control[name] + share * server.extra[name][here].mean(0)
        return Mixing(
            weighted_mean(torch.ones_like(server.sizes), here if here.any() else server.received),
            state={f"{part}/{n}": t for part, of in (("model", model), ("control", control)) for n, t in of.items()},
            rows={name: tensor[None] for name, tensor in model.items()},
            extra={name: tensor[None] for name, tensor in control.items()},
        )
