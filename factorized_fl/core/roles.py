"""The role of every tensor of a model: what travels, what is penalised and what is counted all ask this."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList

from factorized_fl.core.errors import UserError, unknown

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Role:
    """What a tensor is for, and whether it belongs to the classifier.

    `kind` is "u", "v" or "mu" (factors of a weight), "body" (a dense weight or any other parameter), "bias",
    "norm" (affine part of a normalisation) or "stat" (running statistics and every other buffer). Another
    parametrisation may bring kinds of its own.
    """

    kind: str
    head: bool


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every Linear and convolution of the model by its qualified name, in module order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}


def under(name: str, prefix: str) -> bool:
    """Whether a qualified name is `prefix` itself or lies inside it; the empty prefix is the whole model."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def find_head(model: nn.Module, head: str | None = None) -> str:
    """Name of the classifier: as given, else the attribute `head`, else the last Linear or convolution."""
    candidates = layers(model)
    if head is not None:
        if not any(under(name, head) for name in model.state_dict()):
            raise unknown("head", head, candidates)
        return head
    if isinstance(getattr(model, "head", None), nn.Module):
        return "head"
    if not candidates:
        raise UserError("The model has no Linear or convolution layer; name its classifier with head=.")
    return list(candidates)[-1]


def roles(model: nn.Module, head: str | None = None) -> dict[str, Role]:
    """The role of every entry of the model's state dict, in state-dict order.

    A parametrisation tells the kinds of its tensors by an attribute `kinds`, a mapping from the name of its
    parameter (or "original", "original0", ... for the registered tensors) to a kind.
    """
    # keep_vars: a tensor the classifier shares with another module is the classifier's under both names.
    state = model.state_dict(keep_vars=True)
    prefix = find_head(model, head)
    in_head = {id(tensor) for name, tensor in state.items() if under(name, prefix)}

    kinds: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for leaf, kind in _kinds(module):
            # A parametrisation list is met before its members, so what it says about them stands.
            kinds.setdefault(f"{name}.{leaf}" if name else leaf, kind)
    return {name: Role(kinds.get(name, "stat"), id(tensor) in in_head) for name, tensor in state.items()}


def last_body_v(roles: Mapping[str, Role]) -> str:
    """Name of the paper's v^{L-1} (section 4.2): the v of the last factorised layer before the head."""
    names = [name for name, role in roles.items() if role.kind == "v" and not role.head]
    if not names:
        raise UserError("The model has no factorised layer before its head, so there is no v to match clients by.")
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
