"""Clustered-FL: split a cluster of clients whose updates point apart, and average inside each cluster."""

from dataclasses import dataclass

import torch

from factorized_fl.core.mixing import cosine, group_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class ClusteredFL(FedAvg):
    """FedAvg within clusters of clients, which split where the updates of their members disagree.

    A cluster is split when its mean update is short although the updates of its members are long.
    eps1 and eps2 are absolute norms and depend on model and data: `ffl pilot PRESET` records both norms without any
    split and prints values to use (the rule is in docs/methods.md). By default nothing splits: FedAvg, unweighted.
    """

    name = "clustered-fl"
    card = card_of("clustered-fl")
    needs_start = True

    eps1: float = option(0.0, "split only if the cluster's mean update is shorter than this", low=0)
    eps2: float = option(0.0, "and its longest update is longer than this", low=0)
    warm_up: int = option(20, "no split before the end of this round", low=0)
    weights: str = option("equal", "weights of the clients in their cluster's mean", choices=("equal", "images"))

    def mix(self, server: Server) -> Mixing:
        """Splits the clusters that meet the criterion, then averages inside the new clusters."""
        updates = torch.cat([(server.stack[n] - server.start[n])[:, None].flatten(1) for n in sorted(server.stack)], 1)
        similarity = cosine(updates)
        clusters = server.state.get("clusters", torch.zeros(len(updates), dtype=torch.int64)).clone()
        norms = torch.zeros(2, dtype=torch.float64)
        for cluster in clusters.unique().tolist():
            members = ((clusters == cluster) & server.received).nonzero().flatten()
            if not len(members):
                continue
            mean, longest = updates[members].mean(0).norm(), updates[members].norm(dim=1).max()
            norms = torch.maximum(norms, torch.stack([mean, longest]).double().cpu())
            if len(members) > 2 and server.round - 1 > self.warm_up and mean < self.eps1 and longest > self.eps2:
                apart = members[halves(similarity[members][:, members])]  # clients, not positions in the cluster
                clusters[apart] = clusters.max() + 1
        state = {"clusters": clusters, "norms": norms}  # norms: the largest mean and single update of any cluster
        weights = server.sizes if self.weights == "images" else torch.ones_like(server.sizes)
        return Mixing(group_mean(clusters, server.received, weights), similarity, state)


def halves(similarity: torch.Tensor) -> torch.Tensor:
    """Marks the clients of the second of two groups, by complete linkage of the distance -similarity."""
    from sklearn.cluster import AgglomerativeClustering  # imported here because it takes as long to load as PyTorch

    clustering = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    labels = torch.from_numpy(clustering.fit_predict(-similarity.cpu().numpy()))
    return labels != labels[0]
