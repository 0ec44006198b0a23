"""kNN-Per: the shared model's prediction is mixed with that of similar training images of the client."""

from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.options import option
from factorized_fl.core.roles import last_linear
from factorized_fl.core.views import Local, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg

_FAR = 1e30  # distance of an empty place in the store: its weight is 0


class Neighbours(nn.Module):
    """A classifier with a store of features; in evaluation mode its outputs are logarithms of mixed probabilities."""

    keys: torch.Tensor  # [M, D]: features
    values: torch.Tensor  # [M]: their classes, -1 where the store is empty

    def __init__(self, inner: nn.Linear, size: int, share: float, neighbours: int, scale: float) -> None:
        super().__init__()
        self.inner, self.share, self.neighbours, self.scale = inner, share, min(neighbours, size), scale
        self.register_buffer("keys", torch.zeros(size, inner.in_features).to(inner.weight))
        self.register_buffer("values", torch.full((size,), -1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Returns scores in training mode, and the logarithm of the mixed probabilities in evaluation mode."""
        scores = self.inner(features)
        if self.training:
            return scores
        distance = torch.cdist(features, self.keys, compute_mode="donot_use_mm_for_euclid_dist")
        near, which = distance.masked_fill(self.values < 0, _FAR).topk(self.neighbours, largest=False)
        found = torch.zeros_like(scores).scatter_add(
            1, self.values[which].clamp_min(0), torch.softmax(-near / self.scale, 1)
        )
        share = self.share * (self.values >= 0).any()  # 0 before the store is filled
        mixed = share * found + (1 - share) * torch.softmax(scores, 1)
        return mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """FedAvg whose predictions are mixed with those of the nearest training images of the client.

    The probability of a class is share x that of the k nearest stored features, weighted by exp(-distance / scale),
    plus (1 - share) x the model's. Features are the inputs of the classifier's last layer, computed with the model that
    is tested: the client's own after local training, in the paper the global one. The paper chooses the share for each
    client on validation images; here it is one option for all.
    """

    name = "knn-per"
    card = card_of("knn-per")
    needs_classes = True

    share: float = option(0.5, "lambda: share of the neighbours in the prediction", low=0, high=1)
    neighbours: int = option(10, "k: number of neighbours", low=1)
    scale: float = option(1.0, "sigma: scale of distances between features", above=0)
    store: int = option(1000, "largest number of stored training images of a client", low=1)

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Puts the store around the last layer of the classifier; raises UserError if that is no Linear."""
        last = last_linear(model, self.name)
        store = Neighbours(last, self.store, self.share, self.neighbours, self.scale)
        for name, module in list(model.named_modules(remove_duplicate=False)):
            if module is last:  # a network may call it by a second name
                model.set_submodule(name, store)
        return model

    @property
    def personal(self) -> bool:
        """True: the model is tested with a filled store."""
        return True

    @property
    def reads_images(self) -> bool:
        """True: the store holds features of training images."""
        return True

    def tested(self, local: Local) -> Tensors:
        """The trained model with a store of its features of the client's training images."""
        features, labels = local.features(local.tensors)
        count = min(self.store, len(features))
        chosen = torch.linspace(0, len(features) - 1, count).long()
        name = next(name.removesuffix("keys") for name in local.tensors if name.endswith("keys"))
        keys, values = (torch.zeros_like(local.tensors[name + part]) for part in ("keys", "values"))
        keys[:count], values[:count], values[count:] = features[chosen], labels[chosen], -1
        return {name + "keys": keys, name + "values": values}
