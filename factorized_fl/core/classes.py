"""The rows of classifiers, one for each class, and their aggregation over matched classes.

Every client numbers its classes in its own order. A server that knows which class of one client is which class of
another can aggregate their rows. Rows travel as extra payloads with room for `most` classes, so that clients with
different numbers of classes send tensors of one shape. Rows of classes that a client does not have are zero.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from factorized_fl.core.mixing import Mean, Weights, weigh
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Tensors

CLASS = "class/"  # before the names of all payloads about classes
ROW = CLASS + "row/"  # before the name of a tensor of the model: its rows
CONFIDENCE = CLASS + "confidence"  # download, [most]: above 0 where the row is to be replaced
PEERS = CLASS + "peers"  # download, [most, K]: 1 + the number of the matched class at each client; 0 without a match
TAKEN = CLASS + "taken"  # download, [most]: the share of a replaced row that comes from other clients
REPORTS = (CONFIDENCE, TAKEN, PEERS)
MEANS, SPREAD = CLASS + "means", CLASS + "spread"  # upload: statistics of the images of each class
DRIFT = CLASS + "drift"  # upload, [most, D]: the change of each row of the classifier in local training
_STABLE = "class/labels"  # in a checkpoint: the labels that the last matching gave


def class_tensors(roles: Mapping[str, Role], shapes: Mapping[str, torch.Size], layer: str, classes: int) -> list[str]:
    """The tensors of the classifier's last layer that have one row for each class along their first axis."""
    kinds = ("u", "v", "mu", "body", "bias")
    return [
        name
        for name, role in roles.items()
        if role.head and role.kind in kinds and name.startswith(f"{layer}.") and shapes[name][:1] == (classes,)
    ]


def with_room(payloads: Tensors, of_classes: Collection[str], most: int) -> Tensors:
    """The payloads, where those with a row for each class have `most` rows; 0 changes nothing."""
    roomy = {n: t.new_zeros(most, *t.shape[1:]) for n, t in payloads.items() if most and n in of_classes}
    return payloads | roomy


@dataclass(frozen=True)
class ClassRows:
    """The tensors of a model that have a row for each class, and the number of rows with which they travel."""

    names: tuple[str, ...]
    most: int

    def pad(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of a client's classes followed by zeros: [most, ...]."""
        padded = torch.zeros(self.most, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        padded[: len(rows)] = rows
        return padded

    def templates(self, tensors: Tensors) -> Tensors:
        """Zeros in the shape in which the rows of each tensor travel, by the name of the payload."""
        return {ROW + name: self.pad(tensors[name][:0]) for name in self.names}

    def down(self, tensors: Tensors, clients: int) -> Tensors:
        """Zeros in the shapes of all payloads about classes that a client receives."""
        room = torch.zeros(self.most)
        report = {CONFIDENCE: room, TAKEN: room, PEERS: torch.zeros(self.most, clients)}
        return self.templates(tensors) | report

    def replace(self, tensors: Tensors, given: Tensors) -> None:
        """Replaces the rows of matched classes in place."""
        for name in self.names:
            own = tensors[name]
            matched = (given[CONFIDENCE][: len(own)] > 0).to(own.device)
            own[matched] = given[ROW + name][: len(own)].to(own)[matched]


@dataclass(frozen=True)
class Matches:
    """Which classes are the same: classes with one label, of which each client has at most one.

    A label is a whole number; -1 marks a class that was matched with no other, or that does not exist.
    """

    labels: torch.Tensor  # int64 [K, most]
    confidence: torch.Tensor  # float64 [K, most], from 0 to 1

    @classmethod
    def none(cls, clients: int, most: int) -> "Matches":
        """Return a state in which no class is matched."""
        return cls(torch.full((clients, most), -1), torch.zeros(clients, most, dtype=torch.float64))

    def but(self, keep: torch.Tensor) -> "Matches":
        """The matches without the classes where `keep` is false, bool [K, most]."""
        return Matches(self.labels.where(keep, -1), self.confidence.where(keep, 0.0))


class Matcher(Protocol):
    """Finds out which classes are the same."""

    def match(self, extra: Tensors, received: torch.Tensor) -> Matches:
        """Matches the classes of the clients that were received, from what they last sent: payloads [K, ...]."""


@dataclass(frozen=True)
class TrueMatches:
    """The true correspondence, which only a simulation knows."""

    labels: torch.Tensor  # int64 [K, most]

    def match(self, extra: Tensors, received: torch.Tensor) -> Matches:
        """The true labels of the received clients, with full confidence."""
        return Matches(self.labels, (self.labels >= 0).double()).but(received[:, None].expand_as(self.labels))


def common_labels(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """The labels on which both matchings agree: int64 [K, M], -1 for all other classes.

    Two classes get one label if they have one label in `before` and one in `now`.
    """
    both = (before >= 0) & (now >= 0)
    pair = before * (int(now.max()) + 2) + now
    labels = torch.full_like(now, -1)
    labels[both] = pair[both].unique(return_inverse=True)[1]
    return labels


def aggregate_rows(
    stacked: torch.Tensor, labels: torch.Tensor, weights: Weights, clients: Sequence[int], min_peers: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The aggregated rows of some clients, [n, M, ...], and the share of each that comes from others, [n, M].

    The row of a class is the mean of the rows with its label, weighted by the clients' mixing weights, which are scaled
    to sum to 1 over the clients that have the class. Rows to which no other client contributes are zero.

    Args:
        stacked: the rows of all clients, [K, M, ...].
        labels: int64 [K, M], as in `Matches`.
        weights: the mixing weights of the tensor.
        clients: the participants.
        min_peers: a client keeps its own row where the mean has fewer effective peers.
    """
    given, most = weights.rows(clients).to("cpu", torch.float64), labels.shape[1]
    mixed = torch.zeros(len(clients), *stacked.shape[1:], dtype=stacked.dtype, device=stacked.device)
    taken = torch.zeros(len(clients), most, dtype=torch.float64)
    flat = stacked.flatten(0, 1)
    for row, k in enumerate(clients):
        same = (labels[k][:, None, None] == labels) & (labels[k] >= 0)[:, None, None]
        parts = same * given[row][:, None]  # [M, K, M]
        total = parts.sum((1, 2))
        others = parts.sum(2)
        others[:, k] = 0.0
        peers = others.sum(1).square() / others.square().sum(1).clamp_min(1e-300)
        others = others.sum(1)
        found = (others > 0) & (peers >= min_peers)
        taken[row] = torch.where(found, others / total.where(found, 1.0), 0.0)
        if found.any():
            rows = (parts[found] / total[found, None, None]).flatten(1)
            mixed[row][found.to(mixed.device)] = weigh(rows, flat)
    return mixed, taken


@dataclass
class ClassSharing:
    """The server's part of class matching: the matcher, the last matches, and the rows aggregated with them.

    Matches are used once two successive matchings agree on them and their confidence reaches `least`.
    """

    rows: ClassRows
    matcher: Matcher
    described: Tensors  # for each payload by which classes are matched, a tensor of its shape and type
    least: float
    clients: int
    min_peers: float = 0.0  # a client keeps its own row where the mean has fewer
    matches: Matches = field(init=False)  # the matches in use
    labels: torch.Tensor = field(init=False)  # the labels that the last matching gave
    reports: dict[int, Tensors] = field(init=False, default_factory=dict)  # the last report to each client
    _round: int = field(init=False, default=0)
    _before: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.matches = Matches.none(self.clients, self.rows.most)
        self.labels = self.matches.labels.clone()
        self._before = self.labels

    def up(self, tensors: Tensors) -> Tensors:
        """For each payload about classes that a client sends, a tensor of its shape and type."""
        return self.rows.templates(tensors) | self.described

    def match(self, round_number: int, extra: Tensors, received: torch.Tensor) -> None:
        """Matches classes before a round. Matching again in the same round begins with the same earlier labels."""
        if round_number != self._round:
            self._round, self._before = round_number, self.labels.clone()
        found = self.matcher.match(extra, received)
        found = found.but((found.confidence >= self.least) & received[:, None])
        certain = isinstance(self.matcher, TrueMatches)
        labels = found.labels if certain else common_labels(self._before, found.labels)
        self.labels = found.labels.clone()
        self.matches = Matches(labels, found.confidence.where(labels >= 0, 0.0))

    def downloads(
        self, extra: Tensors, weights: Mapping[str, Weights], clients: Sequence[int], revert: Sequence[int]
    ) -> Tensors:
        """The payloads about classes for some clients, [n, ...]; nothing is replaced in the rows of `revert`."""
        labels, places = self.matches.labels, list(clients)
        given: Tensors = {}
        taken = torch.zeros(len(places), self.rows.most, dtype=torch.float64)
        for name in self.rows.names:
            given[ROW + name], share = aggregate_rows(extra[ROW + name], labels, weights[name], places, self.min_peers)
            taken = torch.maximum(taken, share)
        if not self.rows.names:  # the method has payloads for matched classes, in which all clients count alike
            even = Mean(torch.ones(self.clients, dtype=torch.float64) / self.clients)
            taken = aggregate_rows(torch.zeros(self.clients, self.rows.most), labels, even, places)[1]
        taken[list(revert)] = 0.0
        sure = torch.where(taken > 0, self.matches.confidence[places], 0.0)
        number = torch.zeros(len(places), self.rows.most, self.clients)
        for row, k in enumerate(places):
            same = (labels[k][:, None, None] == labels) & (taken[row] > 0)[:, None, None]  # [M, K, M]
            found = same.any(2)
            found[:, k] = False
            number[row] = torch.where(found, same.int().argmax(2) + 1, 0)
        about = {CONFIDENCE: sure.float(), TAKEN: taken.float(), PEERS: number}
        self.reports = {k: {name: tensor[row] for name, tensor in about.items()} for row, k in enumerate(places)}
        return given | about

    @property
    def tensors(self) -> Tensors:
        """Return the tensors for a checkpoint."""
        return {_STABLE: self.labels}

    def load(self, tensors: Tensors) -> None:
        """Restores the state that `tensors` was taken from."""
        self.labels = tensors[_STABLE].clone()
        self._round = 0
