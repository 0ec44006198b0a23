"""Measurements of a federation for the report: they are cheap compared with a round and influence no result."""

from typing import Any

import torch

from factorized_fl.core.mixing import cosine
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Tensors
from factorized_fl.simulate.build import Federation
from factorized_fl.simulate.population import Population, tested_at_end


def trace(federation: Federation) -> Tensors:
    """Similarity and sparsity of the factors at the end of a round; empty for a method without factors.

    `cosine.u`, `cosine.v`: [K, K] of the last factorised layer before the classifier (the paper's u^{L-1}, v^{L-1}),
    NaN for clients that have not trained yet. `mu`: [K, L], the share of each layer's mu that is not pruned at test
    time. All are float64: the cosines are close to 1, and clients are ranked by them.
    """
    if isinstance(federation.clients, Population):
        assert isinstance(federation.server, ServerState)
        return _trace_of(federation, federation.server.updated.nonzero().flatten())
    found: Tensors = {}
    for kind in ("u", "v"):
        names = _names(federation, kind, head=False)
        if names:
            federation.clients.complete({names[-1]: federation.clients.state.common[names[-1]]})
            similarity = cosine(federation.clients.state.common[names[-1]].flatten(1))
            similarity[~federation.clients.trained] = similarity[:, ~federation.clients.trained] = torch.nan
            found[f"cosine.{kind}"] = similarity
    if layers := _names(federation, "mu"):
        threshold = getattr(federation.method, "sparsity", 0.0)
        found["mu"] = torch.stack([_kept(federation, name, threshold) for name in layers], dim=1).cpu()
        federation.clients.complete({"mu": found["mu"]})
    return found


def _trace_of(federation: Federation, clients: torch.Tensor) -> Tensors:
    """Return the trace of the participants only, with their numbers."""
    own, found = [federation.clients.state.client(k) for k in clients.tolist()], Tensors()
    for kind in ("u", "v") if own else ():
        if names := _names(federation, kind, head=False):
            found[f"cosine.{kind}"] = cosine(torch.stack([tensors[names[-1]].flatten() for tensors in own]))
    if (layers := _names(federation, "mu")) and own:
        threshold = getattr(federation.method, "sparsity", 0.0)
        shares = [[_share(tensors[name][None], threshold) for name in layers] for tensors in own]
        found["mu"] = torch.stack([torch.cat(of_client) for of_client in shares])
    return found | ({"clients": clients} if found else {})


def _names(federation: Federation, kind: str, head: bool = True) -> list[str]:
    return [name for name, role in federation.roles.items() if role.kind == kind and (head or not role.head)]


def _kept(federation: Federation, name: str, threshold: float) -> torch.Tensor:
    """The share of entries that are not zero and reach the threshold, for each client."""
    common, own = federation.clients.state.common, federation.clients.state.own
    groups = [common[name]] if name in common else [tensors[name][None] for tensors in own]
    return torch.cat([_share(mu, threshold) for mu in groups])


def _share(mu: torch.Tensor, threshold: float) -> torch.Tensor:
    return ((mu != 0) & (mu.abs() >= threshold)).flatten(1).sum(1).double() / mu[0].numel()


def analyse(federation: Federation) -> dict[str, Any]:
    """At the end of a run: every client's confusion matrix in its own classes, and the names of the layers with mu.

    `sizes` holds for u, v and mu, where a method has them, the number of entries in each layer, client by client.
    """
    classified = not federation.scenario.labels.is_floating_point()
    tested = federation.clients.trained.nonzero().flatten().tolist() if classified else []
    if classified and isinstance(federation.clients, Population):
        tested = tested_at_end(federation.server.received, (), federation.config.seed)
    counts = federation.engine.confusion(federation.last_round, tested, federation.clients) if classified else []
    of = {k: matrix.tolist() for k, matrix in zip(tested, counts, strict=True)}
    confusion = [of.get(k) for k in range(len(federation.clients.state))]
    layers = [name.split(".parametrizations.")[0] for name in _names(federation, "mu")]
    clients = [federation.clients.state.client(k) for k in range(len(federation.clients.state))]
    sizes = {
        kind: [[tensors[name].numel() for name in names] for tensors in clients]
        for kind in ("u", "v", "mu")
        if (names := _names(federation, kind))
    }
    return {"confusion": confusion, "mu_layers": layers, "sizes": sizes}
