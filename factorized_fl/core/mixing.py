"""Mixing weights: the weights with which a client receives the tensors of the others, applied to a stack of clients.

Weights are one of four structures, so that a mean over many clients never makes a K x K matrix. Each of them is equal
to a K x K matrix with non-negative rows that sum to 1; `rows` gives some rows of that matrix.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

_TOLERANCE = 1e-5


class Weights(ABC):
    """The weights with which each client receives the tensors of all clients."""

    @property
    def count(self) -> int:
        """The number of clients, K."""
        return next(iter(self.tensors().values())).shape[:1].numel()

    @abstractmethod
    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """The rows of some clients, [n, K]."""

    def apply(self, stacked: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
        """The mixed tensors of some clients, [n, ...], from those of all clients, [K, ...], which are only read."""
        return weigh(self.rows(clients), stacked)

    @abstractmethod
    def complaint(self) -> str:
        """Return what is wrong with the weights, or an empty string."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The structure as named tensors; `weights_from` reads them."""
        return dict(vars(self))


@dataclass(frozen=True)
class Mean(Weights):
    """Every client receives the same weighted mean."""

    row: torch.Tensor  # [K], sums to 1

    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """The one row, repeated without a copy."""
        return self.row.expand(len(clients), -1)

    def apply(self, stacked: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
        """The mean, computed once and repeated without a copy."""
        mixed = weigh(_repeated(self.row[None]), stacked)[:1].clone()
        return mixed.expand(len(clients), *stacked.shape[1:])

    def complaint(self) -> str:
        """Return what is wrong with the row, or an empty string."""
        return _complaint(self.row[None]) if self.row.dim() == 1 else "the mean needs one weight for each client"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the row as the only tensor."""
        return {"mean": self.row}


@dataclass(frozen=True)
class Groups(Weights):
    """Every client receives the weighted mean of its group; a group without any weight keeps its own tensors."""

    group: torch.Tensor  # int64 [K], the number of each client's group
    weight: torch.Tensor  # [K], not negative

    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """The rows: the weights of each client's group, scaled to sum to 1."""
        places = torch.tensor(list(clients), dtype=torch.int64, device=self.group.device)
        members = torch.where(self.group[places, None] == self.group, self.weight, 0.0)
        alone = members.sum(1) == 0
        members[alone, places[alone]] = 1.0
        return members / members.sum(1, keepdim=True)

    def apply(self, stacked: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
        """One mean for each group that occurs; `rows` would need one row for each client."""
        places = torch.tensor(list(clients), dtype=torch.int64, device=self.group.device)
        groups, which = self.group[places].unique(return_inverse=True)
        members = torch.where(groups[:, None] == self.group, self.weight, 0.0)
        total = members.sum(1)
        rows = members / total.where(total > 0, 1.0)[:, None]
        mixed = weigh(_repeated(rows), stacked)[which.to(stacked.device)]
        for row in (total[which] == 0).nonzero().flatten().tolist():
            mixed[row] = weigh(torch.ones(1, 1), stacked[[clients[row]]])[0]
        return mixed

    def complaint(self) -> str:
        """Checks the weights; rows then sum to 1 by construction."""
        if self.group.shape != self.weight.shape or self.group.dim() != 1:
            return "groups need one number and one weight for each client"
        fits = bool(self.weight.isfinite().all() and (self.weight >= 0).all())
        return "" if fits else "the weights of groups must be finite and not negative"


@dataclass(frozen=True)
class Sparse(Weights):
    """Every client receives from a few clients: row k gives client `peers[k, j]` the weight `shares[k, j]`."""

    peers: torch.Tensor  # int64 [K, n]
    shares: torch.Tensor  # [K, n], rows sum to 1

    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """The rows, zero except for the peers' shares."""
        places = list(clients)
        rows = torch.zeros(len(places), self.count, dtype=self.shares.dtype, device=self.shares.device)
        return rows.scatter_add_(1, self.peers[places], self.shares[places])

    def apply(self, stacked: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
        """A sum over each client's few peers."""
        return torch.cat([weigh(self.shares[[k]], stacked[self.peers[k]]) for k in clients])

    def complaint(self) -> str:
        """Return what is wrong with peers and shares, or an empty string."""
        if self.peers.shape != self.shares.shape or self.peers.dim() != 2:
            return "sparse weights need a share for each peer"
        if not bool(((self.peers >= 0) & (self.peers < self.count)).all()):
            return "sparse weights name a client that does not exist"
        return _complaint(self.shares)


@dataclass(frozen=True)
class Dense(Weights):
    """Any weights, as the matrix itself: only where the number of clients is small."""

    matrix: torch.Tensor  # [K, K], rows sum to 1

    @property
    def count(self) -> int:
        """The number of clients; -1 if the tensor is no matrix."""
        return len(self.matrix) if self.matrix.dim() == 2 else -1

    def rows(self, clients: Sequence[int]) -> torch.Tensor:
        """Return rows of the matrix."""
        return self.matrix[list(clients)]

    def complaint(self) -> str:
        """Return what is wrong with shape and rows, or an empty string."""
        square = self.matrix.dim() == 2 and self.matrix.shape[0] == self.matrix.shape[1]
        return _complaint(self.matrix) if square else "the matrix must be square"


def _repeated(rows: torch.Tensor) -> torch.Tensor:
    """The rows, repeated up to four, or up to the number of clients where that is smaller.

    A matrix product with fewer than four rows is summed in another order on some processors, so its rounding differs
    from that of dense weights.
    """
    wanted = min(4, rows.shape[1])
    return rows if len(rows) >= wanted else rows.repeat(-(-wanted // len(rows)), 1)


def _complaint(rows: torch.Tensor) -> str:
    fits = bool(((rows.sum(1) - 1).abs() < _TOLERANCE).all() and (rows > -_TOLERANCE).all())
    return "" if fits else "rows must sum to 1, without negative weights"


def weights_from(tensors: Mapping[str, torch.Tensor]) -> Weights:
    """The weights that `Weights.tensors` gave; raises KeyError if they hold no weights."""
    if "mean" in tensors:
        return Mean(tensors["mean"])
    if "group" in tensors:
        return Groups(tensors["group"], tensors["weight"])
    if "peers" in tensors:
        return Sparse(tensors["peers"], tensors["shares"])
    return Dense(tensors["matrix"])


def dense(weights: Weights) -> torch.Tensor:
    """The whole matrix, [K, K], which needs few clients."""
    return weights.rows(range(weights.count)).clone()


def own_tensors(count: int) -> Sparse:
    """The weights with which every client keeps its own tensors."""
    return Sparse(torch.arange(count)[:, None], torch.ones(count, 1, dtype=torch.float64))


def weighted_mean(weights: torch.Tensor, received: torch.Tensor) -> Mean:
    """Return the same weighted mean for all clients.

    Args:
        weights: one weight for each client, [K].
        received: the clients from which the server has received tensors, bool [K]; the others get weight 0.

    Returns:
        The mixing weights, which sum to 1.
    """
    row = torch.where(received, weights, 0.0)
    return Mean(row / row.sum())


def group_mean(group: torch.Tensor, received: torch.Tensor, weights: torch.Tensor) -> Groups:
    """The weighted mean over the received members of each group; a client without any keeps its own tensors."""
    return Groups(group, torch.where(received, weights, 0.0))


def cosine(vectors: torch.Tensor) -> torch.Tensor:
    """The cosine similarity of all pairs of rows (paper, Eq. 4), float64 on the CPU; -1 where a row is not finite."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return (unit @ unit.T).nan_to_num(-1.0).clamp(-1, 1).cpu()


def similar_peers(similarity: torch.Tensor, received: torch.Tensor, tau: float, minimum: int) -> torch.Tensor:
    """The clients whose similarity reaches tau, filled up to `minimum` with the most similar ones (paper, Eq. 4).

    A client is always its own peer and counts towards the minimum. Clients that never participated are not candidates.
    """
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    candidates = received | own
    # The client itself comes first even when another client's vector is the same.
    ranked = similarity.masked_fill(~candidates, -torch.inf).masked_fill(own, torch.inf)
    rank = ranked.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return candidates & ((similarity >= tau) | (rank < minimum) | own)


def softmax_over(peers: torch.Tensor, similarity: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The softmax of epsilon * similarity over the peers; similarity to oneself counts as 1 (paper, Eq. 5)."""
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    sigma = similarity.masked_fill(own, 1.0)
    return torch.softmax((epsilon * sigma).masked_fill(~peers, -torch.inf), dim=1)


def in_place(matrix: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The matrix equal to mixing client by client in this order, where later clients read already mixed tensors."""
    effective = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for client in order:
        effective[client] = matrix[client] @ effective
    return effective


def weigh(rows: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
    """Weighted sums of stacked tensors, one for each row of weights: a new tensor, [rows, ...].

    Weight zero excludes a client even if its tensors are NaN; a weight above zero makes the result NaN.
    """
    flat = stacked[:, None].flatten(1)  # also where each client has a single number
    weights, diverged = rows.to(flat), ~finite_rows(flat)
    if diverged.any():
        flat = flat.masked_fill(diverged[:, None], 0.0)  # 0 * nan would be nan
    mixed = weights @ flat
    mixed.masked_fill_(((weights != 0) & diverged).any(1)[:, None], torch.nan)
    return mixed.view(len(rows), *stacked.shape[1:])


def finite_rows(flat: torch.Tensor) -> torch.Tensor:
    """Whether all numbers of each row are finite, bool [n]; `isfinite` needs 20 times as long, and a copy."""
    if not flat.shape[1]:
        return torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    return flat.amin(1).isfinite() & flat.amax(1).isfinite()
