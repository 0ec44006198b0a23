"""Checks of the values that a method returns, so that a mistake in a method raises an error."""

from collections.abc import Mapping

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.method import Method
from factorized_fl.core.mixing import Weights
from factorized_fl.core.views import Mixing, Server, Tensors


def checked_mixing(method: Method, server: Server, extra_down: Tensors) -> Mixing:
    """Returns the method's mixing; raises UserError if it is malformed or if `mix` changed its inputs in place.

    `extra_down` are tensors with the shapes and types of the payloads that the method has to send.
    """
    parts = (server.stack, server.start, server.state, server.extra, server.initial)
    given = [item for part in parts for item in part.items()]
    for name in ("fingerprints", "sizes", "received", "updated"):  # the server keeps these
        if (tensor := getattr(server, name)) is not None:
            given.append((name, tensor))
    before = [tensor._version for _, tensor in given]  # PyTorch counts changes in place
    mixing = method.mix(server)
    if changed := [name for (name, tensor), version in zip(given, before, strict=True) if tensor._version != version]:
        raise UserError(f"The mix of {method.name} changes {changed[0]} in place: make a new tensor instead.")
    count = len(server.sizes)
    used = (mixing.weights, *mixing.others.values()) if isinstance(mixing, Mixing) else ()
    if not used or any(not isinstance(weights, Weights) or weights.count != count for weights in used):
        raise UserError(f"The mix of {method.name} must return a Mixing of {count} x {count} clients.")
    for weights in used:
        if complaint := weights.complaint():
            raise UserError(f"The mix of {method.name} returns wrong weights: {complaint}.")
    here = len(server.clients)
    shapes = {name: stacked.shape[1:] for name, stacked in server.stack.items()}
    declared = {name: like.shape for name, like in extra_down.items()}
    complaints = {
        "others names a tensor that does not travel": mixing.others.keys() - shapes.keys(),
        "rows names a tensor that does not travel": mixing.rows.keys() - shapes.keys(),
        "rows must have the tensor's shape after one row, or one for each participant": not _tensors(mixing.rows)
        or any(
            name in shapes and (rows.shape[1:] != shapes[name] or rows.shape[0] not in (1, here))
            for name, rows in mixing.rows.items()
        ),
        f"similarity must be a tensor of {count} x {count} clients": not _is(mixing.similarity, count, count),
        "state must be a dictionary of tensors": not _tensors(mixing.state),
        f"extra must hold {list(declared)} with one row, or one for each participant": not _tensors(mixing.extra)
        or mixing.extra.keys() != declared.keys()
        or any(t.shape[1:] != declared[n] or t.shape[0] not in (1, here) for n, t in mixing.extra.items()),
        f"downloads must be a tensor of {count} clients": not _is(mixing.downloads, count),
        f"revert must be a tensor of {count} clients": not _is(mixing.revert, count),
        "revert needs needs_start = True in the class": mixing.revert is not None and not method.needs_start,
    }
    for complaint, applies in complaints.items():
        if applies:
            raise UserError(f"The mix of {method.name} is not right: {complaint}.")
    return mixing


def _is(tensor: object, *shape: int) -> bool:
    return tensor is None or (isinstance(tensor, torch.Tensor) and tensor.shape == shape)


def _tensors(state: object) -> bool:
    return isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())


def checked_gradient(name: str, gradient: Tensors, parameters: Tensors) -> Tensors:
    """Returns the gradient of a method; raises UserError unless it has the right shape for every parameter."""
    for parameter_name, parameter in parameters.items():
        given = gradient.get(parameter_name) if isinstance(gradient, Mapping) else None
        if not isinstance(given, torch.Tensor) or given.shape != parameter.shape:
            shape = list(parameter.shape)
            raise UserError(f"The gradient of {name} must have a tensor of shape {shape} for {parameter_name}.")
    return gradient


def checked_payload(name: str, hook: str, payload: Tensors, expected: Tensors) -> Tensors:
    """Returns the named tensors of a hook; raises UserError unless their names and shapes are those declared."""
    fits = _tensors(payload) and payload.keys() == expected.keys()
    if not fits or any(payload[key].shape != expected[key].shape for key in expected):
        shapes = {key: list(tensor.shape) for key, tensor in expected.items()}
        raise UserError(f"{hook} of {name} must return tensors with these names and shapes: {shapes}.")
    return payload
