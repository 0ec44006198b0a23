"""SCAFFOLD: control variates at the server and at every client correct the drift of local training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import factorized_fl as ffl


@ffl.register
@dataclass(frozen=True)
class Scaffold(ffl.Method):
    """Local steps follow g - c_k + c; after them c_k becomes c_k - c + (x - y_k) / (steps lr), the paper's option II.

    The paper's local step is plain SGD: with momentum, the last term is no longer the mean of the gradients.
    """

    name = "scaffold"
    card = ffl.Card(
        "SCAFFOLD",
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020",
        local_step="SGD with control variates",
        travels="all but statistics, and control variates",
        mixing="plain mean, with a server step",
    )

    server_lr: float = ffl.option(1.0, "eta_g: the server's step along the clients' mean update", above=0)

    def shares(self, role: ffl.Role) -> bool:
        return True

    def keeps(self, model: ffl.Tensors, shared: frozenset[str]) -> ffl.Tensors:
        return {name: torch.zeros_like(model[name]) for name in model if name in shared}

    def extra_up(self, shared: ffl.Tensors) -> ffl.Tensors:
        return shared

    def extra_down(self, shared: ffl.Tensors) -> ffl.Tensors:
        return shared

    def gradient(self, local: ffl.Local, parameters: ffl.Tensors, batches: Sequence[ffl.Batch]) -> ffl.Tensors:
        gradient = local.loss_gradient(parameters, batches[0])
        corrected = {name: gradient[name] - local.kept[name] + local.extra[name] for name in local.kept}
        return gradient | corrected

    def finish(self, local: ffl.Local) -> ffl.Tensors:
        changes = {}
        for name, control in local.kept.items():
            moved = local.start[name] - local.tensors[name]
            changes[name] = moved / (local.steps * local.lr) - local.extra[name]
            control.add_(changes[name])
        return changes

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        model = {name: server.state.get(f"model/{name}", server.initial[name]) for name in server.stack}
        control = {name: server.state.get(f"control/{name}", torch.zeros_like(model[name])) for name in model}
        here = server.updated
        if here.any():
            share = float(here.double().mean())
            for name in model:
                model[name] = model[name] + self.server_lr * (server.stack[name][here].mean(0) - model[name])
                control[name] = control[name] + share * server.extra[name][here].mean(0)
        return ffl.Mixing(
            ffl.weighted_mean(torch.ones_like(server.sizes), here if here.any() else server.received),
            state={f"{part}/{n}": t for part, of in (("model", model), ("control", control)) for n, t in of.items()},
            rows={name: tensor[None] for name, tensor in model.items()},
            extra={name: tensor[None] for name, tensor in control.items()},
        )
