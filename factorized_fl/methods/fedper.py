"""FedPer: clients share the body of the network and keep personal heads; fine-tuning after the rounds is optional."""

from dataclasses import dataclass

from factorized_fl.core.options import option
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Local, Phase, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg


def body(role: Role) -> bool:
    """Whether a tensor belongs to the body."""
    return not role.head


def head(role: Role) -> bool:
    """Whether a tensor belongs to the head."""
    return role.head


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of the body, with a head for each client that stays at home.

    Body and head train together. FedAvg here keeps classifiers at home wherever labels disagree, so there the two are
    one method. After the last round each client may train on: `probe_epochs` of the head alone, then `tune_epochs` of
    everything. The second alone is local fine-tuning, both are linear probing then fine-tuning (Kumar et al., 2022).
    """

    name = "fedper"
    card = card_of("fedper")

    probe_epochs: int = option(0, "epochs of the head alone after the last round", low=0)
    tune_epochs: int = option(0, "epochs of the whole model after the last round, and after those of the head", low=0)

    def shares(self, role: Role) -> bool:
        """Share the body."""
        return body(role)

    @property
    def personal(self) -> bool:
        """Whether the model is fine-tuned after the last round."""
        return bool(self.probe_epochs or self.tune_epochs)

    @property
    def reads_images(self) -> bool:
        """Whether the model is fine-tuned after the last round."""
        return self.personal

    def tested(self, local: Local) -> Tensors:
        """The trained model, fine-tuned after the last round."""
        phases = [Phase("probe", self.probe_epochs, trains=head)] if self.probe_epochs else []
        phases += [Phase("tune", self.tune_epochs)] if self.tune_epochs else []
        return local.tune(local.tensors, phases) if local.last else local.tensors
