"""The README's example of a new method, complete: nearest-neighbour averaging of the body."""

from dataclasses import dataclass

import torch

import factorized_fl as ffl
from factorized_fl.core.mixing import cosine


@ffl.register
@dataclass(frozen=True)
class NearestNeighbours(ffl.Method):
    """Average with the few clients whose first layer is most like one's own."""

    name = "nearest-neighbours"
    title = "Nearest neighbours"
    paper = "an example"
    row = ("dense", "SGD", "body and norm", "mean over the nearest")

    neighbours: int = ffl.option(2, "how many others to average with", low=1)

    def shares(self, role: ffl.Role) -> bool:
        return role.kind in ("body", "norm") and not role.head

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        first = next(iter(server.stack.values())).flatten(1)
        similarity = cosine(first - first.mean(0)).fill_diagonal_(2.0)
        similarity[:, ~server.received] = -2.0
        nearest = similarity.topk(min(self.neighbours + 1, len(similarity))).indices
        matrix = torch.zeros_like(similarity).scatter_(1, nearest, 1.0) * server.received
        return ffl.Mixing(matrix / matrix.sum(1, keepdim=True), similarity)
