"""The README's example of a new method, complete: nearest-neighbour averaging of the body."""

from dataclasses import dataclass

import factorized_fl as ffl
from factorized_fl.core.mixing import Sparse, cosine


@ffl.register
@dataclass(frozen=True)
class NearestNeighbours(ffl.Method):
    """Average with the few clients that have the most similar first layer."""

    name = "nearest-neighbours"
    card = ffl.Card("Nearest neighbours", "an example", travels="body and norm", mixing="mean over the nearest")

    neighbours: int = ffl.option(2, "number of other clients to average with", low=1)

    def shares(self, role: ffl.Role) -> bool:
        return role.kind in ("body", "norm") and not role.head

    def mix(self, server: ffl.Server) -> ffl.Mixing:
        first = next(iter(server.stack.values())).flatten(1)
        similarity = cosine(first - first.mean(0)).fill_diagonal_(2.0)
        similarity[:, ~server.received] = -2.0
        nearest = similarity.topk(min(self.neighbours + 1, len(similarity))).indices
        shares = server.received[nearest].double()
        return ffl.Mixing(Sparse(nearest, shares / shares.sum(1, keepdim=True)), similarity)
