"""PACFL: clients are clustered once by the angles between the subspaces of their images."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from factorized_fl.core.ledger import FINGERPRINT
from factorized_fl.core.mixing import group_mean
from factorized_fl.core.options import option
from factorized_fl.core.roles import layers
from factorized_fl.core.views import Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


@dataclass(frozen=True)
class PACFL(FedAvg):
    """FedAvg inside clusters of clients whose images span similar subspaces.

    Before training, each client computes the first left singular vectors of the matrix of its images, one image in a
    column. The dissimilarity of two clients is the smallest principal angle between their vectors, or the sum of the
    angles between vectors of the same rank, in degrees. Clusters come from hierarchical clustering below a threshold.
    Images are averaged to `side` x `side` pixels first, so that signatures of all sizes of images have one length.
    """

    name = "pacfl"
    card = card_of("pacfl")

    vectors: int = option(3, "p: singular vectors in a signature; the paper uses 3 to 5", low=1, high=32)
    threshold: float = option(10.0, "largest dissimilarity inside a cluster, in degrees", low=0)
    angle: str = option("smallest", "smallest principal angle, or sum of angles", choices=("smallest", "sum"))
    linkage: str = option("average", "linkage of the clustering", choices=("average", "complete", "single"))
    side: int = option(16, "pixels of the images in a signature, along each side", low=2, high=64)

    @property
    def looks_at_images(self) -> bool:
        """True: the signature is computed once, before training."""
        return True

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Adds a buffer for the signature: it is as long as the channels of the first layer demand."""
        first = next(iter(layers(model).values()))
        assert isinstance(first.weight, torch.Tensor)
        channels = first.weight.shape[1] if isinstance(first, nn.Conv2d) else 1
        model.register_buffer(FINGERPRINT, torch.zeros(self.vectors * channels * self.side**2).to(first.weight))
        return model

    def look(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, labels: torch.Tensor, classes: int
    ) -> torch.Tensor:
        """The first left singular vectors of the images, one after the other; zeros where there are too few images."""
        length = len(tensors[FINGERPRINT]) // self.vectors
        columns = self._flat(images.double(), length).T
        found = torch.linalg.svd(columns, full_matrices=False).U[:, : self.vectors].T
        return torch.cat([found, found.new_zeros(self.vectors - len(found), length)]).flatten()

    def _flat(self, images: torch.Tensor, length: int) -> torch.Tensor:
        if images.dim() == 4 and images.shape[1] * self.side**2 == length:
            return adaptive_avg_pool2d(images, self.side).flatten(1)
        return adaptive_avg_pool1d(images.flatten(1), length)  # not images: series, tables, tokens

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """Return the client's signature."""
        return tensors[FINGERPRINT]

    @property
    def reads_tensors(self) -> bool:
        """False: signatures and sizes alone decide the weights."""
        return False

    def mix(self, server: Server) -> Mixing:
        """The mean inside each cluster, weighted by numbers of images."""
        assert server.fingerprints is not None
        known = server.received.nonzero().flatten().cpu()
        angles = self.angles(server.fingerprints[known.to(server.fingerprints.device)])
        clusters = torch.arange(len(server.sizes))  # a client that is not known yet is a cluster of its own
        clusters[known] = len(server.sizes) + clusters_below(angles, self.threshold, self.linkage)
        similarity = torch.full((len(clusters), len(clusters)), -90.0 * self.vectors, dtype=torch.float64)
        similarity[known[:, None], known] = -angles
        return Mixing(group_mean(clusters, server.received, server.sizes), similarity)

    def angles(self, signatures: torch.Tensor) -> torch.Tensor:
        """The dissimilarity of each pair of signatures in degrees, float64 [n, n]."""
        bases = signatures.double().cpu().unflatten(1, (self.vectors, -1))
        inner = torch.einsum("ipd,jqd->ijpq", bases, bases)
        if self.angle == "smallest":
            cosines = torch.linalg.matrix_norm(inner, ord=2)[..., None]  # the largest singular value
        else:
            cosines = inner.diagonal(dim1=2, dim2=3).abs()  # the sign of a singular vector is arbitrary
        return cosines.clamp(0, 1).arccos().rad2deg().sum(-1).fill_diagonal_(0.0)


def clusters_below(dissimilarity: torch.Tensor, threshold: float, linkage: str) -> torch.Tensor:
    """The number of each item's cluster, int64 [n], from merging clusters until none are nearer than the threshold."""
    if len(dissimilarity) < 2:
        return torch.zeros(len(dissimilarity), dtype=torch.int64)
    from sklearn.cluster import AgglomerativeClustering  # imported here because it takes as long to load as PyTorch

    clustering = AgglomerativeClustering(None, metric="precomputed", linkage=linkage, distance_threshold=threshold)
    return torch.from_numpy(clustering.fit_predict(dissimilarity.numpy())).to(torch.int64)
