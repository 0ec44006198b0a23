"""Rank-one plus sparse weights; Factorized-FL and its variant beta aggregate them among similar clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import FINGERPRINT
from factorized_fl.core.method import Method, Normal
from factorized_fl.core.mixing import Dense, cosine, in_place, similar_peers, softmax_over
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role, last_body_v
from factorized_fl.core.views import Batch, Cost, Local, Mixing, Roles, Server, Tensors
from factorized_fl.methods.cards import card_of
from factorized_fl.methods.fingerprints import (
    blur,
    describe_images,
    describe_privately,
    first_layer,
    likeness,
    make_room,
    plausible,
)
from factorized_fl.nn import factorize
from factorized_fl.nn.factorized import INITS, LAYOUTS, head_mu_xavier


def count_factors(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """u, v and the entries of mu that reach the threshold, each way; statistics of images up."""
    assert isinstance(method, Factorized)
    count = sum(tensors[name].numel() for name, role in roles.items() if role.kind in ("u", "v"))
    mu = [tensors[name] for name, role in roles.items() if role.kind == "mu"]
    count += int(sum((tensor.abs() >= method.sparsity).sum() for tensor in mu))
    return Cost(count + (tensors[FINGERPRINT].numel() if method.looks_at_images else 0), count)


def count_u(method: Method, tensors: Tensors, roles: Roles) -> Cost:
    """All u each way, and v or the statistics of images up."""
    u = sum(tensors[name].numel() for name, role in roles.items() if role.kind == "u")
    matched = tensors[FINGERPRINT] if method.looks_at_images else tensors[last_body_v(roles)]
    return Cost(u + matched.numel(), u)


@dataclass(frozen=True)
class Factorized(Method):
    """W = u v^T + mu, and all three travel."""

    side_by_side = True

    sparsity: float = option(5e-4, "lambda: weight of the L1 penalty and pruning threshold of mu", low=0)
    l1: bool = option(True, "the L1 penalty has a gradient (in the authors' code it has none)")
    penalty: str = option(
        "step",
        "the whole L1 penalty of Eq. 6 counts in each step, as the authors' code would, or once in each local epoch",
        choices=("step", "epoch"),
    )
    layout: str = option("taps", "which matrix of a kernel has rank one", choices=LAYOUTS)
    prune: str = option(
        "test",
        "set |mu| < lambda to zero for testing only, or permanently at the end of each round",
        choices=("test", "round"),
    )
    head: str = option(
        "share",
        "where labels agree: share the classifier, or reset it each round (authors' code)",
        choices=("share", "reset"),
    )
    head_mu: str = option(
        "zero", "the classifier's initial mu: zero, or Xavier (authors' code)", choices=("zero", "xavier")
    )

    init: str = option(
        "xavier", "draw new factors, or fit them so that pretrained weights keep their values", choices=INITS
    )
    include: tuple[str, ...] = option((), "names or patterns of the layers that are factorised; empty: all")
    keep_dense: tuple[str, ...] = option((), "names or patterns of layers that stay dense")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Factorises every layer including the classifier; |mu| < lambda counts as zero in evaluation mode."""
        self.factorise(model, generator)
        return head_mu_xavier(model, generator) if self.head_mu == "xavier" else model

    def factorise(self, model: nn.Module, generator: torch.Generator, mu: bool = True) -> nn.Module:
        """Factorises the chosen layers of the model in place and returns it."""
        return factorize(
            model,
            layout=self.layout,
            mu=mu,
            include=self.include,
            skip=self.keep_dense,
            init=self.init,
            threshold=self.sparsity if mu else 0.0,
            generator=generator,
        )

    @property
    def counts_steps(self) -> bool:
        """Whether the penalty is spread over the steps of an epoch."""
        return self.penalty == "epoch"

    def gradient(self, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors:
        """Cross-entropy plus lambda * ||mu||_1 (paper, Eq. 6), or with penalty=epoch that share of it for each step."""
        gradient = local.loss_gradient(parameters, batches[0])
        if self.l1 and self.sparsity:
            strength = self.sparsity / local.epoch_steps if self.counts_steps else self.sparsity
            for name, role in local.roles.items():
                if role.kind == "mu" and name in gradient:
                    gradient[name] = gradient[name].add(parameters[name].sign(), alpha=strength)
        return gradient

    def finish(self, local: Local) -> Tensors:
        """With prune=round sets small entries of mu to zero: the test result is the same and mu travels sparse."""
        if self.prune == "round":
            for name, role in local.roles.items():
                if role.kind == "mu":
                    local.tensors[name].masked_fill_(local.tensors[name].abs() < self.sparsity, 0.0)
        return {}

    def shares(self, role: Role) -> bool:
        """All tensors that are not reset."""
        return not self.resets(role)

    def resets(self, role: Role) -> bool:
        """With head=reset the whole classifier."""
        return self.head == "reset" and role.head


@dataclass(frozen=True)
class FactorizedByImages(Factorized):
    """Clients are matched by statistics of their images."""

    blur: float = option(0.0, "Gaussian noise on the statistics, in units of their spread between images", low=0)
    clip: float = option(10.0, "limit of the statistics, in the same units", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blur and not self.looks_at_images:
            raise UserError(f"blur = {self.blur} has no effect where no statistics travel: set match=statistics.")

    def parametrize(self, model: nn.Module, generator: torch.Generator, labels_agree: bool) -> nn.Module:
        """Factorises the model and adds a buffer for the statistics of the client's images."""
        model = super().parametrize(model, generator, labels_agree)
        return make_room(model) if self.looks_at_images else model

    @property
    def looks_at_images(self) -> bool:
        """True: the statistics are computed once, before training."""
        return True

    def look(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, labels: torch.Tensor, classes: int
    ) -> torch.Tensor:
        """The statistics of the images, as seen through the untrained first layer."""
        return describe_images(first_layer(model.eval(), tensors, images), labels, classes)

    @property
    def looks_privately(self) -> bool:
        """True: noise is added to mean directions of the images' moments."""
        return True

    def look_privately(
        self, model: nn.Module, tensors: Tensors, images: torch.Tensor, noise: float, normal: Normal
    ) -> torch.Tensor:
        """Noisy statistics of the images, as seen through the untrained first layer, without regard to labels."""
        return describe_privately(first_layer(model.eval(), tensors, images), noise, normal)

    def plausible(self, fingerprint: torch.Tensor) -> bool:
        """Whether no log-variance is extremely large or small."""
        return plausible(fingerprint)

    def hide(self, fingerprint: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The fingerprint with noise, if `blur` is above zero."""
        return blur(fingerprint, self.blur, self.clip, generator) if self.blur else fingerprint

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """The statistics of the client's images."""
        return tensors[FINGERPRINT]


@dataclass(frozen=True)
class FactorizedBySimilarity(FactorizedByImages):
    """Clients are matched by the similarity of their v, or of their images."""

    tau: float = option(0.5, "least similarity of a peer; the paper uses 0 to 0.75", low=-1, high=1)
    epsilon: float = option(10.0, "sharpness of the softmax over peers; the paper uses 1 to 20", low=0)
    minimum: int = option(1, "smallest number of peers, the client itself included; the paper has no minimum", low=1)
    sequential: bool = option(False, "mix one client after the other, in place (authors' code)")
    match: str = option(
        "v",
        "match clients by v of the layer before the classifier (paper) or by statistics of their images",
        choices=("v", "statistics"),
    )

    @property
    def looks_at_images(self) -> bool:
        """Whether clients are matched by statistics of their images."""
        return self.match == "statistics"

    def fingerprint(self, tensors: Tensors, roles: Roles) -> torch.Tensor | None:
        """The v of the layer before the classifier, or the statistics of the client's images."""
        return super().fingerprint(tensors, roles) if self.looks_at_images else tensors[last_body_v(roles)].flatten()

    @property
    def reads_tensors(self) -> bool:
        """Whether clients are matched by v, which is one of the shared tensors or read from them."""
        return not self.looks_at_images

    def peers(self, similarity: torch.Tensor, server: Server) -> torch.Tensor:
        """The peers of each client, bool [K, K]."""
        return similar_peers(similarity, server.received, self.tau, self.minimum)

    def mix(self, server: Server) -> Mixing:
        """A softmax of the similarity over each client's peers; other clients get weight zero."""
        assert server.fingerprints is not None
        prints = server.fingerprints
        similarity = likeness(prints, server.received) if self.looks_at_images else cosine(prints)
        matrix = softmax_over(self.peers(similarity, server), similarity, self.epsilon)
        if self.sequential:
            matrix = in_place(matrix, server.rng.permutation(list(server.clients)).tolist())
        return Mixing(Dense(matrix), similarity)


@dataclass(frozen=True)
class FactorizedFL(FactorizedBySimilarity):
    """Weights are u v^T + mu; clients with similar v share u, and keep v and the sparse mu to themselves."""

    name = "factorized-fl"
    card = card_of("factorized-fl", cost=count_u)

    def shares(self, role: Role) -> bool:
        """u, and the affine terms of normalisation as in the authors' code (the paper does not mention them)."""
        return role.kind in ("u", "norm") and super().shares(role)


@dataclass(frozen=True)
class FactorizedFLBeta(FactorizedBySimilarity):
    """Factorized-FL in which similar clients share all of u, v and mu."""

    name = "factorized-fl-beta"
    card = card_of("factorized-fl-beta", cost=count_factors)

    @property
    def fingerprint_is_shared(self) -> bool:
        """Whether clients are matched by v, one of the shared tensors."""
        return not self.looks_at_images
