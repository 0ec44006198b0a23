"""Networks that the caller passes: found by name, made by a factory, and checked before training."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.frozen import training_mode
from factorized_fl.core.named import import_named, name_of, reason_of
from factorized_fl.core.roles import find_head, roles, trainable

Factory = Callable[[Tensor, int], nn.Module]  # (a batch of one input, number of outputs) -> network


def model_name(model: Any) -> str:
    """Return "module:qualname" of a class or function, which the configuration records.

    Raise UserError for anything else.
    """
    if isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model is one network, a {kind}: give a class or a function (example, outputs) -> network.")
    return name_of("model", model, "a class or a function (example, outputs) -> network")


def import_factory(name: str) -> Factory:
    """Return the class or function "package.module:name"; raise UserError if it cannot be imported."""
    found = import_named("model", name)
    model_name(found)
    return found


def make_own_model(factory: Factory, name: str, example: Tensor, outputs: int, client: str) -> nn.Module:
    """Return the network for a client with so many classes.

    Raise UserError, naming the client, if the factory fails or its network cannot be trained on such inputs.
    """
    try:
        model = factory(example.clone(), outputs)
    except Exception as error:  # foreign code may raise any error
        called = f"it is called with an example {list(example.shape)} and {outputs} outputs"
        raise UserError(f"The model {name} cannot be made for {client} ({reason_of(error)}): {called}.") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"The model {name} gave a {type(model).__name__} for {client}: return a torch.nn.Module.")
    batch = torch.cat([example, example])
    try:
        with torch.no_grad():
            scores = model.eval()(batch)
    except Exception as error:
        shape = list(batch.shape)
        raise UserError(f"The model {name} cannot compute a batch {shape} of {client}: {reason_of(error)}.") from error
    _check_scores(scores, outputs, f"The model {name} gives", client)
    if not trainable(model):
        raise UserError(f"The model {name} has nothing to train for {client}: set requires_grad of a parameter.")
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        scores = training_mode(model)(batch)
        _check_scores(scores, outputs, f"In training mode the model {name} gives", client)
        scores.sum().backward()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The model {name} cannot be trained on inputs of {client}: {reason_of(error)}.") from error
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    model.zero_grad(set_to_none=True)
    return model.eval()


def _check_scores(scores: Any, outputs: int, gives: str, client: str) -> None:
    """Raise UserError unless a network gave scores for both inputs of a client."""
    if not isinstance(scores, Tensor) or scores.shape != (2, outputs):
        got = list(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise UserError(f"{gives} {got} for two inputs of {client}: return scores [2, {outputs}].")


def equalise(models: Mapping[int, nn.Module], clients: Mapping[int, str]) -> None:
    """Give networks with different numbers of outputs the same initial values outside their classifiers.

    Keys are numbers of outputs; `clients` names a client of each. Raise UserError if the networks differ there in the
    names or shapes of their tensors.
    """
    (count, first), *others = models.items()
    head, state = find_head(first), first.state_dict()
    body = [name for name, role in roles(first).items() if not role.head]
    for outputs, model in others:
        own = model.state_dict()
        pair = f"between {clients[count]} and {clients[outputs]}"
        if clients[count] == clients[outputs]:
            pair = f"between networks with {count} and {outputs} outputs"
        if odd := sorted(own.keys() ^ state.keys()):
            raise UserError(f"The model differs {pair}: only one has a tensor '{odd[0]}'; make all of them alike.")
        for name in body:
            if own[name].shape != state[name].shape:
                shapes = f"{list(state[name].shape)} and {list(own[name].shape)}"
                raise UserError(
                    f"The tensor '{name}' of the model differs {pair} ({shapes}), but the classifier is '{head}': "
                    "name the classifier `head`, or do not let other layers depend on the outputs."
                )
            own[name].copy_(state[name])
