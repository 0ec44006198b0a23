"""FedFOMO: each client evaluates other clients' models on held-out images and mixes in those that lower its loss."""

from dataclasses import dataclass

import numpy as np
import torch

from factorized_fl.core.card import count_model
from factorized_fl.core.method import Method
from factorized_fl.core.mixing import Dense
from factorized_fl.core.options import option
from factorized_fl.core.views import Cost, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.first_order import first_order_weights


def _count_models(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """Count one model up and M models down."""
    assert isinstance(method, FedFOMO)
    up = count_model(method, tensors, roles).up
    return Cost(up, method.models * up)


def _models_down(method: Method) -> int:
    """All models that are tried but the client's own."""
    assert isinstance(method, FedFOMO)
    return method.models - 1


@dataclass(frozen=True)
class FedFOMO(FedAvg):
    """Each client evaluates other clients' models on held-out images and mixes in those that lower its loss.

    Client i weighs model n by (L_i(start_i) - L_i(theta_n)) / ||theta_n - start_i||, keeping positive weights.
    When labels differ the classifier does not travel: L_i tries the body of model n under the classifier of client i.
    In the authors' code whole models travel, so a model is tried with the BatchNorm statistics of its sender.
    """

    name = "fedfomo"
    card = card_of("fedfomo", cost=_count_models, models_down=_models_down)
    needs_start = True

    models: int = option(10, "M: models that a client tries, its own included", low=1)
    explore: float = option(0.3, "probability of trying a random client, falling by 0.05 a round", low=0, high=1)
    held_out: float = option(0.2, "share of the training images kept for trying", above=0, high=0.5)
    tried_on: str = option(
        "holdout", "where models are tried: own held-out images, or validation", choices=("holdout", "validation")
    )
    fallback: str = option(
        "start", "if no candidate helps: previous start or current model", choices=("start", "current")
    )
    statistics: str = option(
        "sender",
        "BatchNorm statistics of a model that is tried: those of its sender, which then travel (authors' code), the "
        "client's own, or recalibrated on the client's training images",
        choices=("sender", "own", "recalibrated"),
    )

    @property
    def sends_statistics(self) -> bool:
        """Whether models are tried with the statistics of their senders."""
        return self.statistics == "sender"

    @property
    def recalibrates_candidates(self) -> bool:
        """Whether statistics are measured on the client's training images for each model."""
        return self.statistics == "recalibrated"

    @property
    def holdout(self) -> float:
        """The share of training images to try models on; none if the validation split serves."""
        return 0.0 if self.tries_validation else self.held_out

    @property
    def tries_validation(self) -> bool:
        """Whether the validation split serves instead of a hold-out."""
        return self.tried_on == "validation"

    def mix(self, server: Server) -> Mixing:
        """Tries and weighs the candidates of each participant and remembers the weights as preferences.

        A client for which no candidate lowers the loss reverts to its previous start, or keeps its current model. If
        the baseline loss is not finite (divergence or timeout), the client keeps its current model.
        """
        count = len(server.sizes)
        matrix = torch.eye(count, dtype=torch.float64)
        preference = server.state.get("preference", 0.1 * torch.eye(count, dtype=torch.float64)).clone()
        downloads = torch.zeros(count, dtype=torch.int64)
        revert = torch.zeros(count, dtype=torch.bool)
        for i in server.clients:
            tried = self.candidates(preference[i].numpy(), i, server)
            weights = first_order_weights(server, i, tried)
            downloads[i] = len(tried) - (i in tried)  # a client is not sent its own model
            if weights is None:
                continue
            if total := weights.sum().abs():
                preference[i, tried] += weights / total
            positive = weights.clamp(min=0)
            if positive.sum() > 0:
                matrix[i] = 0
                matrix[i, tried] = positive / positive.sum()
            else:
                revert[i] = server.received[i] and self.fallback == "start"
        return Mixing(Dense(matrix), preference, {"preference": preference}, downloads, revert)

    def candidates(self, preference: np.ndarray, i: int, server: Server) -> list[int]:
        """The client and up to M - 1 others: the most preferred, sometimes a random one; ties are broken at random."""
        pool = [n for n in server.received.nonzero().flatten().tolist() if n != i]
        tried = [i] if server.received[i] else []
        chance = max(0.0, self.explore - 0.05 * (server.round - 1))
        while pool and len(tried) < self.models:
            if server.rng.random() < chance:
                choice = pool[server.rng.integers(len(pool))]
            else:
                best = max(preference[n] for n in pool)
                choice = server.rng.choice([n for n in pool if preference[n] == best])
            pool.remove(choice)
            tried.append(int(choice))
        return tried
