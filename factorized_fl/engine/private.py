"""Differentially private local steps (Abadi et al., 2016): each example's gradient is clipped, and noise is added.

A method learns nothing of a client's images except the noisy gradient. Every call draws a new Poisson sample, so
the batches that a method is given hold no examples, and the other views of images raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from factorized_fl.core.errors import UserError
from factorized_fl.core.frozen import frozen_modules
from factorized_fl.core.seeds import seed_global
from factorized_fl.core.stack import call_untied
from factorized_fl.core.views import Batch, Local, Phase, Tensors
from factorized_fl.protect.budget import Budget
from factorized_fl.tasks.augment import draw

if TYPE_CHECKING:
    from factorized_fl.engine import Work
    from factorized_fl.engine.reference import ReferenceEngine

PerExample = Callable[[Tensors, Tensor, Tensor], Tensors]  # gradients [n, ...] at these parameters, inputs and targets
_NUMBERS = 2**25  # numbers in the gradients that are held at once
_SLIGHTLY = 1 - 1e-6  # below the limit, so that rounding cannot exceed it


class BudgetSpent(Exception):
    """Raised instead of a gradient that would exceed a client's budget."""


def clipped_sum(gradients: Tensors, clip: float) -> Tensors:
    """Return the sum over examples of gradients [n, ...], each scaled to a norm over all tensors of at most `clip`.

    An example with a gradient that is not finite counts as zero.
    """
    square = torch.stack([g.reshape(len(g), -1).double().square().sum(1) for g in gradients.values()]).sum(0)
    norms = square.sqrt()
    factors = torch.where(norms.isfinite(), _SLIGHTLY * clip / norms.clamp_min(clip), 0.0)
    return {
        name: torch.einsum("n,n...->...", factors.to(g), g.nan_to_num(0.0, 0.0, 0.0)) for name, g in gradients.items()
    }


def per_example(model: nn.Module, loss: Callable[..., Tensor], fixed: Tensors) -> tuple[PerExample, PerExample]:
    """Return two functions for gradients [n, ...] of single examples: all at once, and one after the other.

    The model is called with one example at a time and with copies of the buffers in `fixed`, so that no example
    influences the gradient of another one, or the model. The first function cannot compute every model.
    """

    def of_one(at: Tensors, example: Tensor, target: Tensor) -> Tensor:
        outputs = call_untied(model, fixed | at, example[None])
        return loss(outputs, target[None], None)

    def together(at: Tensors, examples: Tensor, targets: Tensor) -> Tensors:
        return vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")(at, examples, targets)

    def in_turn(at: Tensors, examples: Tensor, targets: Tensor) -> Tensors:
        rows: list[Sequence[Tensor]] = []
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
        for example, target in zip(examples, targets, strict=True):
            outputs = call_untied(model, {n: t.clone() for n, t in fixed.items()} | leaves, example[None])
            value = loss(outputs, target[None], None)
            rows.append(torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True))
        return {name: torch.stack(found) for name, found in zip(leaves, zip(*rows, strict=True), strict=True)}

    return together, in_turn


class PrivateGradient:
    """The loss gradient of one client in one phase of a round: a noisy mean over a Poisson sample."""

    def __init__(
        self, engine: ReferenceEngine, budget: Budget, k: int, parameters: Tensors, losses: list[Tensor]
    ) -> None:
        losses.append(torch.tensor(torch.nan))  # the loss on training images is not released
        self.engine, self.budget, self.k, self.names = engine, budget, k, list(parameters)
        self.model = engine._model(k)
        self.positions = engine.scenario.clients[k].train

    def __call__(self, at: Tensors, batch: Batch, penalty: object = None) -> Tensors:
        """Return the gradient at these parameters; raises BudgetSpent if the client may take no further step."""
        if penalty is not None:
            _refuse()
        draws = self.budget.draws(self.k)
        if draws is None:
            raise BudgetSpent
        plan, clip = self.budget.plans[self.k], self.budget.clip
        chosen = self.positions[draws.uniform("sample", len(self.positions)) < plan.rate]
        point = {name: at[name].detach() for name in self.names}
        total = {name: torch.zeros_like(tensor) for name, tensor in point.items()}
        # Dropout and augmentation depend on places in the sample: known draws would reveal which examples are in it.
        seed = int(draws.uniform("torch", 1) * 2**52)
        generator = torch.Generator().manual_seed(seed)
        seed_global(seed, next(iter(point.values())).device)
        size = max(1, _NUMBERS // max(1, sum(tensor.numel() for tensor in point.values())))
        fixed = dict(self.model.named_buffers()) | {n: t for n, t in at.items() if n not in self.names}
        for some in chosen.split(size) if len(chosen) else ():
            drawn = draw(len(some), generator) if self.engine.config.augment == "paper" else None
            examples = self.engine.inputs.augmented(some, drawn, None)
            found = self._gradients(point, fixed, examples, self.engine.labels(self.k, some))
            total = {name: tensor + add for (name, tensor), add in zip(total.items(), found.values(), strict=True)}
        scale, expected = float(self.budget.noise[self.k]) * clip, plan.rate * len(self.positions)
        return {
            name: (tensor + (scale * draws.normal(f"noise/{name}", tensor.shape)).to(tensor)) / expected
            for name, tensor in total.items()
        }

    def _gradients(self, at: Tensors, fixed: Tensors, examples: Tensor, targets: Tensor) -> Tensors:
        together, in_turn = per_example(self.model, self.engine.task.loss.mean, fixed)
        slow = self.engine.one_by_one
        if id(self.model) not in slow:
            try:
                return clipped_sum(together(at, examples, targets), self.budget.clip)
            except (RuntimeError, ValueError, NotImplementedError):  # an operation that vmap does not know
                slow.add(id(self.model))
        return clipped_sum(in_turn(at, examples, targets), self.budget.clip)


def no_batches(engine: ReferenceEngine, round_number: int, k: int, phase: Phase, index: int) -> Iterator[Batch]:
    """Yields a batch without examples for each of a phase's steps."""
    epochs = engine.config.epochs if phase.epochs is None else phase.epochs
    client = engine.scenario.clients[k]
    size = min(engine.config.batch_size, len(client.train))
    nothing = client.train[:0]
    empty = Batch(engine.inputs.plain(nothing), engine.labels(k, nothing))
    for _ in range(epochs * engine.method.passes * (len(client.train) // size)):
        yield empty


def guarded(work: Work, local: Local) -> Local:
    """Return a client's view without access to images, or the view itself without a privacy budget."""
    if work.budget is None:
        return local
    return replace(local, loss_gradient=_refuse, features=_refuse, loss=_refuse, tune=_refuse, batches=lambda: iter(()))


def _refuse(*args: Any, **named: Any) -> NoReturn:
    raise UserError(
        "privacy_epsilon is set, and the method uses images in a way that is not covered by its guarantee: "
        "use fedavg, factorized-peers or another method that only takes gradient steps."
    )


def refuse_shared_statistics(model: nn.Module, name: str) -> None:
    """Raises UserError if examples of a batch influence each other, or the model's buffers, in this network."""
    frozen = {id(part) for module in frozen_modules(model).values() for part in module.modules()}
    for place, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        mixes = isinstance(module, nn.modules.batchnorm._BatchNorm)
        fixed = id(module) in frozen and module.running_mean is not None
        if fixed or (not mixes and module.running_mean is None):
            continue
        raise UserError(
            f"The network {name} has {type(module).__name__} at '{place}', whose statistics mix the examples of a "
            "batch, so no example's influence is bounded as privacy_epsilon needs it: use a network with GroupNorm, "
            "or freeze the part with BatchNorm."
        )
