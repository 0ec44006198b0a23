"""Weights of rank one plus a sparse rest, and what sharing them costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.core.ledger import FINGERPRINT
from factorized_fl.core.method import Method
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role, last_body_v
from factorized_fl.core.views import Batch, Cost, Local, Roles, Tensors
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
