"""FedAvg: everybody receives the mean of all, weighted by their numbers of images."""

from dataclasses import dataclass

from factorized_fl.core.mixing import weighted_mean
from factorized_fl.methods.base import Method, Mixing, Server
from factorized_fl.nn import Role


@dataclass(frozen=True)
class FedAvg(Method):
    """Down: the mean. Up: the trained model."""

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017"
    row = ("dense", "SGD", "all but statistics", "sample-weighted mean")
    published_gb = 20.39

    def shares(self, role: Role) -> bool:
        """Everything; the federation itself keeps statistics and disagreeing classifiers at home."""
        return True

    def mix(self, server: Server) -> Mixing:
        """The same row for everybody: n_i / n over all who have answered."""
        return Mixing(weighted_mean(server.sizes, server.received))
