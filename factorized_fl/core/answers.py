"""What a method answers, checked: whoever writes one makes mistakes, and none may pass for a result."""

from collections.abc import Mapping

import torch

from factorized_fl.core.errors import UserError
from factorized_fl.methods.base import Method, Mixing, Server, Tensors


def mixing_of(method: Method, server: Server) -> Mixing:
    """The method's mixing, if it says from whom each client takes how much and leaves what clients have alone."""
    given = [item for part in (server.stack, server.start, server.state) for item in part.items()]
    before = [tensor._version for _, tensor in given]  # PyTorch counts changes in place
    mixing = method.mix(server)
    if changed := [name for (name, tensor), version in zip(given, before, strict=True) if tensor._version != version]:
        raise UserError(
            f"The mix of {method.name} changes {changed[0]} in place, which is not its own: make a new tensor instead."
        )
    count = len(server.sizes)
    matrices = [mixing.matrix, *mixing.others.values()] if isinstance(mixing, Mixing) else [None]
    if not all(_are_weights(matrix, count) for matrix in matrices):
        raise UserError(
            f"The mix of {method.name} must be a Mixing of {count} x {count} clients whose rows sum to 1, "
            "without negative weights."
        )
    complaints = {
        "others names a tensor that does not travel": mixing.others.keys() - server.stack.keys(),
        f"similarity must be a tensor of {count} x {count} clients": not _is(mixing.similarity, count, count),
        "state must be a dictionary of tensors": not _tensors(mixing.state),
        f"downloads must be a tensor of {count} clients": not _is(mixing.downloads, count),
        f"revert must be a tensor of {count} clients": not _is(mixing.revert, count),
        "revert needs needs_start = True in the class": mixing.revert is not None and not method.needs_start,
    }
    for complaint, applies in complaints.items():
        if applies:
            raise UserError(f"The mix of {method.name} is not right: {complaint}.")
    return mixing


def _are_weights(matrix: object, count: int) -> bool:
    """Whether it has a row for each client that sums to 1, without negative weights."""
    if not isinstance(matrix, torch.Tensor) or matrix.shape != (count, count):
        return False
    return bool(((matrix.sum(1) - 1).abs() < 1e-5).all() and (matrix > -1e-5).all())


def _is(tensor: object, *shape: int) -> bool:
    """Whether it is a tensor of that shape, or nothing."""
    return tensor is None or (isinstance(tensor, torch.Tensor) and tensor.shape == shape)


def _tensors(state: object) -> bool:
    return isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())


def gradient_of(method: Method, gradient: Tensors, parameters: Tensors) -> Tensors:
    """The method's gradient, if it has one of the right shape for every parameter."""
    for name, parameter in parameters.items():
        given = gradient.get(name) if isinstance(gradient, Mapping) else None
        if not isinstance(given, torch.Tensor) or given.shape != parameter.shape:
            raise UserError(
                f"The gradient of {method.name} must have a tensor of shape {list(parameter.shape)} for {name}."
            )
    return gradient
