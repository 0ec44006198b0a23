"""Networks of the caller: found by name, made by a factory, and checked before anything is trained."""

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import find_head, roles, trainable

Factory = Callable[[Tensor, int], nn.Module]  # (a batch of one input, number of outputs) -> network


def model_name(model: Any) -> str:
    """Return "module:qualname" of a class or function, which the configuration records.

    Raise UserError for anything else.
    """
    if isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model is one network, a {kind}: give a class or a function (example, outputs) -> network.")
    if isinstance(model, functools.partial):
        words = [*map(repr, model.args), *(f"{key}={value!r}" for key, value in sorted(model.keywords.items()))]
        return f"{model_name(model.func)}({', '.join(words)})"
    if not callable(model):
        raise UserError(f"model = {model!r} must be a name, a class or a function (example, outputs) -> network.")
    named = model if hasattr(model, "__qualname__") else type(model)
    return f"{named.__module__}:{named.__qualname__}"


def import_factory(name: str) -> Factory:
    """Return the class or function "package.module:name"; raise UserError if it cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs foreign code, which may raise anything
        advice = "give model='package.module:name' of an installed module, or the class itself."
        raise UserError(f"The model '{name}' cannot be imported ({_reason(error)}): {advice}") from None
    model_name(found)
    return found


def make_own_model(factory: Factory, name: str, example: Tensor, outputs: int, client: str) -> nn.Module:
    """Return the network for a client with so many classes.

    Raise UserError, naming the client, if the factory fails or its network cannot be trained on such inputs.
    """
    try:
        model = factory(example.clone(), outputs)
    except Exception as error:  # whatever foreign code raises
        called = f"it is called with an example {list(example.shape)} and {outputs} outputs"
        raise UserError(f"The model {name} cannot be made for {client} ({_reason(error)}): {called}.") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"The model {name} gave a {type(model).__name__} for {client}: return a torch.nn.Module.")
    try:
        with torch.no_grad():
            scores = model.eval()(torch.cat([example, example]))
    except Exception as error:
        shape = [2, *example.shape[1:]]
        raise UserError(f"The model {name} cannot compute a batch {shape} of {client}: {_reason(error)}.") from error
    if not isinstance(scores, Tensor) or scores.shape != (2, outputs):
        got = list(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise UserError(f"The model {name} gives {got} for two inputs of {client}: return scores [2, {outputs}].")
    if not trainable(model):
        raise UserError(f"The model {name} has nothing to train for {client}: set requires_grad of a parameter.")
    return model


def equalise(models: Mapping[int, nn.Module], clients: Mapping[int, str]) -> None:
    """Give networks with different numbers of outputs the same initial values outside their classifiers.

    Keys are numbers of outputs; `clients` names a client of each. Raise UserError if the networks differ there in the
    names or shapes of their tensors, or if they have nothing in common.
    """
    (count, first), *others = models.items()
    head, state = find_head(first), first.state_dict()
    body = [name for name, role in roles(first).items() if not role.head]
    for outputs, model in others:
        own = model.state_dict()
        pair = f"between {clients[count]} and {clients[outputs]}"
        if odd := sorted(own.keys() ^ state.keys()):
            raise UserError(f"The model differs {pair}: only one has a tensor '{odd[0]}'; make all of them alike.")
        if not body:
            raise UserError(f"Only the classifier '{head}' is left {pair}: put a layer before it.")
        for name in body:
            if own[name].shape != state[name].shape:
                shapes = f"{list(state[name].shape)} and {list(own[name].shape)}"
                raise UserError(
                    f"The tensor '{name}' of the model differs {pair} ({shapes}), but the classifier is '{head}': "
                    "name the classifier `head`, or do not let other layers depend on the outputs."
                )
            own[name].copy_(state[name])


def _reason(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
