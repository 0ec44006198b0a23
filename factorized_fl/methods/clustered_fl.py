"""Clustered-FL: split a cluster of clients whose updates point apart, and average inside each cluster."""

from dataclasses import dataclass

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import cosine, group_mean
from factorized_fl.core.options import option
from factorized_fl.core.views import Mixing, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class ClusteredFL(FedAvg):
    """FedAvg within clusters of clients, which split where the updates of their members disagree.

    A cluster is split when its mean update is short although the updates of its members are long. By default both
    are compared with each other, so that the rule depends on no scale, and the halves must be as far apart as the
    method's theory demands. With rule=norms both are compared with absolute norms, as in the authors' code: these
    depend on model and data, and `ffl pilot PRESET` suggests values. A run without any split is FedAvg, unweighted.
    """

    name = "clustered-fl"
    card = card_of("clustered-fl")
    follows_clients = True
    needs_start = True

    rule: str = option(
        "relative",
        "split a cluster by its mean update in relation to the longest one, or by absolute norms (authors' code)",
        choices=("relative", "norms"),
    )
    ratio: float = option(
        0.25, "rule=relative: the mean update is shorter than this share of the longest one", above=0, high=1
    )
    gamma: float = option(
        0.5, "rule=relative: greatest noise of an update that the distance of the halves must exceed", low=0, high=1
    )
    eps1: float = option(0.0, "rule=norms: the cluster's mean update is shorter than this", low=0)
    eps2: float = option(0.0, "rule=norms: and its longest update is longer than this", low=0)
    warm_up: int = option(20, "no split before the end of this round", low=0)
    weights: str = option("equal", "weights of the clients in their cluster's mean", choices=("equal", "images"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule != "norms" and (self.eps1 or self.eps2):
            raise UserError("eps1 and eps2 have no effect with rule = 'relative': add rule = 'norms'.")

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
            if len(members) > 2 and server.round - 1 > self.warm_up and self.stationary(float(mean), float(longest)):
                among = similarity[members][:, members]
                second = halves(among)
                if self.rule == "norms" or separation(among, second) > self.gamma:
                    clusters[members[second]] = clusters.max() + 1  # clients, not positions in the cluster
        state = {"clusters": clusters, "norms": norms}  # norms: the largest mean and single update of any cluster
        weights = server.sizes if self.weights == "images" else torch.ones_like(server.sizes)
        return Mixing(group_mean(clusters, server.received, weights), similarity, state)

    def stationary(self, mean: float, longest: float) -> bool:
        """Whether members move although their cluster does not, from the norms of its mean and longest update."""
        if self.rule == "norms":
            return mean < self.eps1 and longest > self.eps2
        return mean < self.ratio * longest

    def activated(self, state: Tensors) -> bool | None:
        """Whether any cluster was split."""
        return "clusters" in state and len(state["clusters"].unique()) > 1


def separation(similarity: torch.Tensor, second: torch.Tensor) -> float:
    """sqrt((1 - alpha) / 2) for the greatest similarity alpha of two clients in different halves.

    According to the method's theory two halves whose data disagree are separated correctly if the noise of every
    update, relative to its length, is below this.
    """
    across = similarity[~second][:, second].max()
    return float(((1 - across) / 2).clamp(min=0).sqrt())


def halves(similarity: torch.Tensor) -> torch.Tensor:
    """Marks the clients of the second of two groups, by complete linkage of the distance -similarity."""
    from sklearn.cluster import AgglomerativeClustering  # imported here because it takes as long to load as PyTorch

    clustering = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    labels = torch.from_numpy(clustering.fit_predict(-similarity.cpu().numpy()))
    return labels != labels[0]
