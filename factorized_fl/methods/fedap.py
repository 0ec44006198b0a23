"""FedAP: clients with similar BatchNorm statistics weigh more, in one fixed matrix of weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import Dense, weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedbn import FedBN

_MEAN, _VARIANCE = ".running_mean", ".running_var"


@dataclass(frozen=True)
class FedAP(FedBN):
    """Normalisation stays with each client; the rest is weighted by likeness of BatchNorm statistics.

    The distance of two clients is the sum over BatchNorm layers of the Wasserstein distance of Gaussians with their
    channels' means and variances. Another client's weight is proportional to its inverse; the client's own is fixed.
    The paper computes the statistics with a pretrained network. Without one, this is its f-FedAP: FedBN for `warm_up`
    rounds, after which the weights follow from the running statistics and do not change.
    """

    name = "fedap"
    card = card_of("fedap")
    follows_clients = True

    own: float = option(0.5, "lambda: the client's own weight", low=0, high=1)
    warm_up: int = option(3, "rounds of FedBN before the statistics are compared", low=1)

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """The running statistics of all BatchNorm layers."""
        found = {name: tensor for name, tensor in model.items() if name.endswith((_MEAN, _VARIANCE))}
        if not found:
            raise UserError("fedap compares BatchNorm statistics, but the network has no BatchNorm: use fedavg.")
        return found

    @property
    def reads_images(self) -> bool:
        """True: statistics of BatchNorm travel."""
        return True

    def finish(self, local: Local) -> Tensors:
        """Sends the running statistics."""
        return {name: t.clone() for name, t in local.tensors.items() if name.endswith((_MEAN, _VARIANCE))}

    def mix(self, server: Server) -> Mixing:
        """FedBN during the warm-up; then the weights from the statistics that each client first sent after it."""
        known = server.state.get("known", torch.zeros_like(server.received))
        kept = {name: server.state.get(name, torch.zeros_like(stacked)) for name, stacked in server.extra.items()}
        everyone = weighted_mean(server.sizes, server.received)
        if server.round <= self.warm_up:
            return Mixing(everyone, state={"known": known, **kept})
        new = server.received & ~known
        kept = {name: torch.where(_like(new, t), server.extra[name], t) for name, t in kept.items()}
        known = known | new
        distance = _distances(kept)
        others = (known[:, None] & known).fill_diagonal_(False).cpu()
        inverse = torch.where(others, 1 / distance.clamp_min(1e-14), 0.0)
        matrix = (1 - self.own) * inverse / inverse.sum(1, keepdim=True).clamp_min(1e-300)
        matrix.diagonal().copy_(1 - matrix.sum(1))  # all of it without other clients
        matrix = torch.where(known.cpu()[:, None], matrix, everyone.rows(range(len(known))).to(matrix))
        return Mixing(Dense(matrix), -distance, state={"known": known, **kept})


def _like(marks: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The marks [K] in a shape that selects rows of the tensor."""
    return marks.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))


def _distances(statistics: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The distance of each pair of clients, float64 [K, K]."""
    total = torch.zeros(())
    for name, means in statistics.items():
        if name.endswith(_MEAN):
            deviations = statistics[name.removesuffix(_MEAN) + _VARIANCE].double().sqrt()
            places = torch.cat([means.double(), deviations], 1).cpu()
            total = total + torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    return total
