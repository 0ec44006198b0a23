"""The state of all clients as a stack: for every tensor name one tensor with a leading client axis."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from factorized_fl.core.frozen import frozen_names
from factorized_fl.core.roles import canonical_names
from factorized_fl.core.views import Tensors


def untied_state(model: nn.Module) -> Tensors:
    """The model's tensors, each under its canonical name: a tensor that two modules share occurs once."""
    names = canonical_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if names[name] == name}


def client_state(model: nn.Module) -> Tensors:
    """The tensors that belong to a client: those of `untied_state` without the frozen part, which is held once."""
    frozen = frozen_names(model)
    return {name: tensor for name, tensor in untied_state(model).items() if name not in frozen}


def load_untied(model: nn.Module, tensors: Tensors) -> None:
    """Loads tensors that `untied_state` or `client_state` gave for such a model.

    Raises RuntimeError if the names or shapes differ.
    """
    needed = client_state(model).keys() | (untied_state(model).keys() & tensors.keys())
    if odd := sorted(tensors.keys() ^ needed):
        raise RuntimeError(f"the tensor {odd[0]} is missing or not expected")
    model.load_state_dict(tensors, strict=False)


def call_untied(model: nn.Module, tensors: Tensors, inputs: torch.Tensor) -> Any:
    """The model's output with these tensors, given by canonical name, in place of its own.

    `functional_call` would leave the given tensors in a module that is registered under two names: it swaps the
    tensors of each name, and swaps them back in the same order.
    """
    first: dict[int, str] = {}
    given = {}
    for prefix, module in model.named_modules():  # each module once
        for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if tensor is not None and (canonical := first.setdefault(id(tensor), name)) in tensors:
                given[name] = tensors[canonical]
    return functional_call(model, given, (inputs,), tie_weights=False)


class ClientStack:
    """Tensors of K clients: `common[name]` is [K, ...]; tensors whose shapes differ are in `own[k]`."""

    def __init__(self, common: Tensors, own: Sequence[Tensors]) -> None:
        self.common = common
        self.own = list(own)

    @classmethod
    def of(cls, clients: Sequence[Tensors]) -> "ClientStack":
        """Stack the tensors that have the same shape at all clients."""
        shapes = {name: {tuple(client[name].shape) for client in clients} for name in clients[0]}
        common = {
            name: torch.stack([client[name] for client in clients]) for name, found in shapes.items() if len(found) == 1
        }
        own = [{name: client[name].clone() for name in client if name not in common} for client in clients]
        return cls(common, own)

    def __len__(self) -> int:
        return len(self.own)

    def client(self, k: int) -> Tensors:
        """Client k's tensors, as views: writing to them writes to the stack."""
        return {name: stacked[k] for name, stacked in self.common.items()} | self.own[k]

    def made(self, make: Callable[[torch.Tensor], torch.Tensor], names: Iterable[str]) -> "ClientStack":
        """A stack of what `make` returns for each tensor with one of the names, such as a copy or zeros."""
        wanted = set(names)
        common, *own = ({n: make(t) for n, t in part.items() if n in wanted} for part in (self.common, *self.own))
        return ClientStack(common, own)

    def begun(self, name: str) -> torch.Tensor:
        """Return the initial values of all clients under this name, [K, ...]; to be called before any client trains."""
        return self.common[name].clone()

    def take(self, other: "ClientStack", clients: Sequence[int]) -> None:
        """Copy some clients' tensors from another stack, for the names that this stack has."""
        places = list(clients)
        for name, stacked in self.common.items():
            stacked[places] = other.common[name][places]
        for k in places:
            for name, tensor in self.own[k].items():
                tensor.copy_(other.own[k][name])

    def flat(self, prefix: str) -> Tensors:
        """All tensors under distinct names, for a checkpoint; shares memory with the stack."""
        flat = {f"{prefix}/all/{name}": stacked for name, stacked in self.common.items()}
        for k, own in enumerate(self.own):
            flat |= {f"{prefix}/{k}/{name}": tensor for name, tensor in own.items()}
        return flat


def copy_pairs(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies the second tensor of each pair to the first, with one launch per type of tensor."""
    by_type: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for to, source in pairs:
        by_type.setdefault(to.dtype, []).append((to, source))
    for same in by_type.values():
        torch._foreach_copy_([to for to, _ in same], [source for _, source in same])
