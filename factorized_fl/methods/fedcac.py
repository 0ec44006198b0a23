"""FedCAC: parameters that matter to a client are averaged only among clients to which the same ones matter."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import Dense, weigh, weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedCAC(FedAvg):
    """Parameters that are critical to a client are averaged only among clients with the same critical ones.

    A parameter is critical if |change in the round x value| is among the `critical` largest of its tensor. Clients i
    and j collaborate if the overlap of their critical parameters reaches mean + round / `rounds_together` x (largest -
    mean) over all pairs. The other parameters are averaged over all clients. The server combines the two, so that one
    model is sent to each client.
    """

    name = "fedcac"
    card = card_of("fedcac")

    critical: float = option(0.5, "tau: share of the parameters of each tensor that is critical", above=0, high=1)
    rounds_together: int = option(170, "beta: the round from which on no other client's critical ones are used", low=1)

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """Which parameters are critical: 1 or 0."""
        return {name: model[name] for name in model if name in shared}

    def finish(self, local: Local) -> Tensors:
        """Marks the parameters that are critical to this client after its training."""
        marks = {}
        for name in local.shared:
            sensitivity = ((local.tensors[name] - local.start[name]) * local.tensors[name]).abs()
            count = int(self.critical * sensitivity.numel())
            least = sensitivity.flatten().topk(count).values[-1] if count else torch.inf
            marks[name] = ((sensitivity >= least) & (sensitivity > 0)).to(sensitivity)
        return marks

    def mix(self, server: Server) -> Mixing:
        """Critical parameters from the collaborators of each client, all others from the mean."""
        here, clients = server.received.cpu(), list(server.clients)
        marks = torch.cat([stacked[:, None].flatten(1) for stacked in server.extra.values()], 1).double().cpu()
        apart = torch.cdist(marks, marks, p=1)
        overlap = 1 - apart / (2 * marks.sum(1, keepdim=True)).clamp_min(1)
        pairs = (here[:, None] & here).fill_diagonal_(False)
        together = torch.eye(len(here), dtype=torch.bool)
        if pairs.any():
            mean, largest = overlap[pairs].mean(), overlap[pairs].max()
            together |= pairs & (overlap >= mean + server.round / self.rounds_together * (largest - mean))
        matrix = together.double() / together.sum(1, keepdim=True)
        everyone = weighted_mean(server.sizes, server.received)
        rows = {}
        for name, stacked in server.stack.items():
            mark = server.extra[name][clients]
            rows[name] = mark * weigh(matrix[clients], stacked) + (1 - mark) * everyone.apply(stacked, clients)
        return Mixing(Dense(matrix), overlap, rows=rows)
