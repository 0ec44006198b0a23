"""The frozen part of a model, which no client trains: held once, in the model, and not among any client's tensors.

A module is frozen if it has parameters and none of them requires a gradient. It stays in evaluation mode, so that its
statistics do not change and its dropout is off. A single parameter that requires no gradient is frozen as well.
"""

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import nn

from factorized_fl.core.roles import canonical_names


def frozen_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the frozen modules that lie in no other frozen module, by name."""
    found: dict[str, nn.Module] = {}
    inside: set[int] = set()
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        if id(module) not in inside and parameters and not any(p.requires_grad for p in parameters):
            found[name] = module
            inside |= {id(part) for part in module.modules()}
    return found


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Return the canonical names of frozen parameters, and of all buffers of frozen modules."""
    canonical, state = canonical_names(model), model.state_dict(keep_vars=True)
    fixed = {id(p) for p in model.parameters() if not p.requires_grad}
    fixed |= {id(buffer) for module in frozen_modules(model).values() for buffer in module.buffers()}
    return frozenset(canonical[name] for name, tensor in state.items() if id(tensor) in fixed)


def training_mode(model: nn.Module) -> nn.Module:
    """Set a model to training mode except its frozen modules, and return it."""
    model.train()
    if all(parameter.requires_grad for parameter in model.parameters()):
        return model
    for module in frozen_modules(model).values():
        module.eval()
    return model


def share_frozen(models: Mapping[int, nn.Module]) -> None:
    """Let models whose frozen parts have equal values hold them in the same memory."""
    first, *others = models.values()
    names = frozen_names(first)
    given = {name: tensor for name, tensor in first.state_dict(keep_vars=True).items() if name in names}
    for model in others:
        own = frozen_names(model)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in own and name in given and torch.equal(tensor, given[name]):
                tensor.data = given[name].data


def mark_of_frozen(model: nn.Module) -> str:
    """Return a digest of the names and values of the frozen part; empty if there is none."""
    names, mark = frozen_names(model), blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        if name in names:
            mark.update(name.encode())
            mark.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return mark.hexdigest() if names else ""
