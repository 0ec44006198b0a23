"""FedAvg: all clients receive the mean of all models, weighted by their numbers of images."""

from dataclasses import dataclass

from factorized_fl.core.method import Method
from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods.cards import card_of


@dataclass(frozen=True)
class FedAvg(Method):
    """All clients train one model, the mean of their models weighted by their numbers of images."""

    name = "fedavg"
    card = card_of("fedavg")

    def shares(self, role: Role) -> bool:
        """All tensors; running statistics and disagreeing classifiers are kept at home by the round itself."""
        return True

    @property
    def reads_tensors(self) -> bool:
        """False for this mean; a subclass with a `mix` of its own declares for itself."""
        return type(self).mix is not FedAvg.mix

    def mix(self, server: Server) -> Mixing:
        """The same weights n_i / n for all, over the clients from which the server has received a model."""
        return Mixing(weighted_mean(server.sizes, server.received))
