"""FedProto: clients share the means of their classes in the space of features, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.method import Method
from factorized_fl.core.mixing import own_tensors
from factorized_fl.core.options import option
from factorized_fl.core.roles import last_linear
from factorized_fl.core.views import Batch, Cost, Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of


def _count_prototypes(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """One prototype of each class, each way; none where the classifier is not known, as at a coordinator."""
    heads = _heads(tensors, roles)
    count = heads[-1].numel() if heads else 0
    return Cost(count, count)


def _heads(tensors: Tensors, roles: Roles) -> list[torch.Tensor]:
    """The weights of the classifier's layers, [C, D] each."""
    return [t for name, t in tensors.items() if name in roles and roles[name].head and t.dim() == 2]


@dataclass(frozen=True)
class FedProto(Method):
    """Clients share class prototypes, and pull the features of their images towards the global ones.

    A prototype is the mean of the classifier's inputs over the training images of a class. The global prototype is the
    plain mean over the clients that have the class, as in the authors' code. Where clients number their classes
    differently, `align` matches them, and a class without a match has the prototype of its own client. The local
    objective is the loss + pull x the mean squared difference of features from the prototypes of their classes. Clients
    classify with their own model.
    """

    name = "fedproto"
    card = card_of("fedproto", cost=_count_prototypes)
    capturable = True
    needs_agreeing_labels = True
    needs_classes = True
    class_payloads = frozenset({"prototypes", "counts", "known"})

    pull: float = option(1.0, "lambda: weight of the distance to the global prototypes", low=0)

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """The model as it is; raises UserError unless its classifier ends in a Linear."""
        last_linear(model, self.name)
        return model

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """The prototypes, and the number of images of each class."""
        head = _heads(model, roles)[-1]
        return {"prototypes": head, "counts": head[:, 0]}

    def extra_down(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        """The global prototypes, and whether any client has the class."""
        head = _heads(model, roles)[-1]
        return {"prototypes": head, "known": head[:, 0]}

    @property
    def reads_images(self) -> bool:
        """True: prototypes are means of features."""
        return True

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """The gradient of the loss and of the distance to the prototypes; a class without one is not pulled."""
        labels = batches[0].labels
        towards, known = local.extra["prototypes"][labels], local.extra["known"][labels]

        def distance(features: torch.Tensor) -> torch.Tensor:
            return self.pull * ((features - towards).square().mean(1) * known).mean()

        return local.loss_gradient(parameters, batches[0], distance)

    def finish(self, local: Local) -> Tensors:
        """The means of this client's classes; rows of classes that it does not have are zero."""
        features, labels = local.features({})
        room = len(local.extra["known"])
        counts = torch.bincount(labels, minlength=room).to(features)
        sums = torch.zeros(room, features.shape[1]).to(features).index_add_(0, labels, features)
        return {"prototypes": sums / counts.clamp_min(1)[:, None], "counts": counts}

    def mix(self, server: Server) -> Mixing:
        """The mean prototypes; models stay at home."""
        if server.labels is not None:
            return self._mix_matched(server, server.labels)
        has = (server.extra["counts"] > 0) & server.received.to(server.extra["counts"].device)[:, None]
        count = has.sum(0)
        means = (server.extra["prototypes"] * has[..., None]).sum(0) / count.clamp_min(1)[:, None]
        return Mixing(
            own_tensors(len(server.sizes)),
            extra={"prototypes": means[None], "known": (count > 0).to(means)[None]},
        )

    def _mix_matched(self, server: Server, labels: torch.Tensor) -> Mixing:
        """The mean prototypes of matched classes, in the numbering of each participant."""
        counts = server.extra["counts"]
        has = (counts > 0) & server.received.to(counts.device)[:, None]
        alone = int(labels.max()) + 1 + torch.arange(labels.numel()).reshape(labels.shape)
        group = torch.where(labels >= 0, labels, alone).unique(return_inverse=True)[1].to(counts.device)
        sums, number = (
            torch.zeros(int(group.max()) + 1, *each.shape[2:]).to(each).index_add_(0, group[has], each[has])
            for each in (server.extra["prototypes"], has.to(counts))
        )
        own = group[list(server.clients)]
        known = number[own] > 0
        means = sums[own] / number[own].clamp_min(1)[..., None]
        return Mixing(own_tensors(len(server.sizes)), extra={"prototypes": means, "known": known.to(means)})
