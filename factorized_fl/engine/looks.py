"""Measurements on a client for the hooks of methods: inputs of its classifier, and losses of other models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from factorized_fl.core.clients import ClientState
from factorized_fl.core.roles import last_layer
from factorized_fl.core.stack import call_untied
from factorized_fl.core.views import Phase, Tensors
from factorized_fl.engine.optimizers import OptimizerUpdate, SgdUpdate, Stepper
from factorized_fl.engine.training import clipped

if TYPE_CHECKING:
    from factorized_fl.engine.reference import ReferenceEngine

Penalty = Callable[[torch.Tensor], torch.Tensor]  # from the classifier's inputs to a term of the loss


@contextmanager
def head_inputs(model: nn.Module, wanted: bool = True) -> Iterator[list[torch.Tensor]]:
    """Yields a list to which each call of the model adds the inputs of the classifier's last layer, [B, D].

    The list stays empty unless `wanted`.
    """
    seen: list[torch.Tensor] = []
    if not wanted:
        yield seen
        return

    def look(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        seen.append(given[0].flatten(1))

    handle = last_layer(model).register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Restores the mode, training or evaluation, of all modules at the end."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def features_of(
    engine: ReferenceEngine, k: int, clients: ClientState, tensors: Tensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the inputs of the last layer, [n, D], and the labels, [n], of all training images of client k.

    The model is evaluated with the given tensors in place of the client's.
    """
    model, state = engine._model(k), clients.state.client(k) | tensors
    with _as_it_was(model), head_inputs(model) as seen:
        labels = [found for _, found in engine._outputs(k, state, engine.scenario.clients[k].train)]
    return torch.cat(seen), torch.cat(labels)


@torch.no_grad()
def loss_of(engine: ReferenceEngine, k: int, clients: ClientState, tensors: Tensors) -> float:
    """Returns the mean loss on complete batches of training images of client k, with the given tensors in its model.

    BatchNorm uses the statistics of each batch; running statistics stay as they are.
    """
    model, total = engine._model(k), 0.0
    batches, weights = engine.work.plain_batches(k), engine._class_weights(k)
    with _as_it_was(model):
        model.eval()
        for module in model.modules():
            module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
        for chosen in batches:
            state = {name: tensor.clone() for name, tensor in (clients.state.client(k) | tensors).items()}
            with engine.casting():
                outputs = call_untied(model, state, engine.inputs.plain(chosen))
            total += float(engine.task.loss.mean(engine.exact(outputs), engine.labels(k, chosen), weights))
    return total / len(batches)


def tuned(
    engine: ReferenceEngine,
    round_number: int,
    k: int,
    clients: ClientState,
    tensors: Tensors,
    phases: Sequence[Phase],
) -> Tensors:
    """Returns copies of the given tensors after training in these phases, in client k's model.

    Each phase begins with a fresh optimiser of the run's kind and has its own batches.
    """
    copies = {name: tensor.clone() for name, tensor in (clients.state.client(k) | tensors).items()}
    factor = engine._factor(round_number, k, 0)
    for index, phase in enumerate(phases):
        loss_gradient, parameters = engine._attach(k, copies, [], phase)
        update = _fresh(engine, parameters)
        for batch in engine.batches(round_number, k, phase, -1 - index):
            update.step(clipped(loss_gradient(parameters, batch), engine.training.clip), factor)
    return copies


def _fresh(engine: ReferenceEngine, parameters: Tensors) -> Stepper:
    """Returns an optimiser of the run's kind without any state."""
    choice, config = engine.training.optimizer, engine.config
    if choice.build is None:
        buffers = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        return SgdUpdate(parameters, buffers, config.lr, config.momentum, config.weight_decay)
    own = {name: p for name, p in parameters.items() if isinstance(p, nn.Parameter)}
    return OptimizerUpdate(choice.name, choice.build, own, {})
