"""The role and the canonical name of every tensor of a model: sharing, penalties and counts are decided by role."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

from factorized_fl.core.errors import UserError, unknown

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NOTED = "_ffl_classifier"  # the attribute with the name that `name_classifier` noted
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
RUNNING = ("running_mean", "running_var")  # ends of the names of BatchNorm's statistics


@dataclass(frozen=True)
class Role:
    """The purpose of a tensor, and whether it belongs to the classifier.

    `kind` is "u", "v" or "mu" (factors of a weight), "body" (a dense weight or any other parameter), "bias",
    "norm" (affine part of a normalisation) or "stat" (running statistics and every other buffer). Other
    parametrisations may declare kinds of their own.
    """

    kind: str
    head: bool


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return every Linear and convolution once, by the first name it is registered under, in module order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}


def layers_under(model: nn.Module, prefix: str) -> list[str]:
    """Return the names, as in `layers`, of the layers that lie under `prefix` by any name they are registered under."""
    inside = {id(module) for name, module in model.named_modules(remove_duplicate=False) if under(name, prefix)}
    return [name for name, module in layers(model).items() if id(module) in inside]


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of the tensor of each state-dict entry; entries that share one (tied weights) agree."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


def trainable(model: nn.Module) -> list[str]:
    """Return the canonical names of the parameters with requires_grad=True, in state-dict order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def under(name: str, prefix: str) -> bool:
    """Return whether a qualified name is `prefix` or lies inside it; every name lies inside the empty prefix."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def name_classifier(model: nn.Module, name: str) -> None:
    """Note which module of the model is its classifier; raise UserError if it has no such module with tensors."""
    if not any(under(entry, name) for entry in model.state_dict()):
        raise unknown("classifier", name, [part for part, _ in model.named_modules() if part])
    setattr(model, _NOTED, name)


def find_head(model: nn.Module, head: str | None = None) -> str:
    """Return the classifier's name: `head`, else the noted one, else the module `head`, else the last layer.

    Raise UserError if there is none.
    """
    candidates = layers(model)
    head = getattr(model, _NOTED, None) if head is None else head
    if head is not None:
        if not any(under(name, head) for name in model.state_dict()):
            raise unknown("head", head, candidates)
        return head
    if isinstance(getattr(model, "head", None), nn.Module):
        return "head"
    if not candidates:
        raise UserError(
            "No classifier is found, as the model has no Linear or convolution layer: call the module that gives the "
            "scores `head`."
        )
    return list(candidates)[-1]


def last_layer(model: nn.Module) -> nn.Module:
    """Return the last Linear or convolution of the classifier; raise UserError if the classifier has none."""
    head = find_head(model)
    if not (names := layers_under(model, head)):
        raise UserError(f"The classifier '{head}' has no Linear or convolution, whose inputs this method needs.")
    return model.get_submodule(names[-1])


def last_linear(model: nn.Module, method: str) -> nn.Linear:
    """Return the last layer of the classifier; raise UserError, which names the method, if that is no Linear."""
    last = last_layer(model)
    if not isinstance(last, nn.Linear):
        raise UserError(
            f"The classifier ends in a {type(last).__name__}, but {method} needs one that ends in a Linear: "
            "change it, or choose fedavg or another method."
        )
    return last


def roles(model: nn.Module, head: str | None = None) -> dict[str, Role]:
    """Return the role of every entry of the model's state dict, in state-dict order, frozen parameters included.

    A parametrisation declares the kinds of its tensors by an attribute `kinds`, a mapping from the name of its
    parameter (or "original", "original0", ... for the registered tensors) to a kind.
    """
    # keep_vars keeps the identity of shared tensors: one that the classifier shares belongs to it under every name.
    state = model.state_dict(keep_vars=True)
    prefix = find_head(model, head)
    in_head = {id(tensor) for name, tensor in state.items() if under(name, prefix)}

    kinds: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for leaf, kind in _kinds(module):
            # A parametrisation list comes before its members, so the kinds it declares for them take precedence.
            kinds.setdefault(f"{name}.{leaf}" if name else leaf, kind)
    return {name: Role(kinds.get(name, "stat"), id(tensor) in in_head) for name, tensor in state.items()}


def last_body_v(roles: Mapping[str, Role]) -> str:
    """Return the name of the v of the last factorised layer before the head (paper: v^{L-1}), or raise UserError."""
    names = [name for name, role in roles.items() if role.kind == "v" and not role.head]
    if not names:
        raise UserError(
            "The model has no factorised layer before its head, so there is no v to match clients by: put one there, "
            "or choose fedavg or another method that does not match by v."
        )
    return names[-1]


def _kinds(module: nn.Module) -> Iterator[tuple[str, str]]:
    if isinstance(module, ParametrizationList):
        for index, parametrisation in enumerate(module):
            declared: Mapping[str, str] = getattr(parametrisation, "kinds", {})
            if index == 0:
                yield from ((leaf, declared.get(leaf, "body")) for leaf in module._parameters)
            for leaf, _ in parametrisation.named_parameters(remove_duplicate=False):
                yield f"{index}.{leaf}", declared.get(leaf, "body")
        return
    for leaf in module._parameters:
        if isinstance(module, NORMS):
            yield leaf, "norm"
        else:
            yield leaf, "bias" if leaf.endswith("bias") else "body"
