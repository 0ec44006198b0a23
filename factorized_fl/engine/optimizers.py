"""Optimisers of local training, whose state belongs to the client: it is stacked, checkpointed and resumed.

SGD is computed here as PyTorch does, on momentum that the engines share. Any other optimiser is one of PyTorch's
classes or the caller's: it is made for each client and round, and given the state that it left in the client's tensors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.named import reason_of
from factorized_fl.core.views import Tensors

Build = Callable[[list[nn.Parameter]], Optimizer]

SGD = "sgd"
_UNFIT = ("LBFGS", "SparseAdam")  # optimisers that need a closure, or sparse gradients
_READY = "ready"  # the entry that is true once the optimiser has made the others of a parameter
_GROUP = "group "  # prefix of the entries of a parameter group
_NUMBER = "#"  # separates an entry from its kind, if it is a number
_KINDS: Mapping[str, Callable[[float], Any]] = {"bool": bool, "int": int, "float": float}


class Stepper(Protocol):
    """The optimiser of one client's parameters in one phase of its training."""

    def step(self, gradient: Tensors, factor: float) -> None:
        """Moves the parameters along a gradient, with the learning rate times a factor."""

    def keep(self) -> None:
        """Writes the state that outlives the phase to the client's tensors."""


class SgdUpdate:
    """SGD as in PyTorch: decay is added to the gradient, the gradient to the buffer, the buffer to the weight."""

    def __init__(self, parameters: Tensors, buffers: Tensors, lr: float, momentum: float, decay: float) -> None:
        self.parameters, self.buffers = parameters, buffers
        self.lr, self.momentum, self.decay = lr, momentum, decay

    @torch.no_grad()
    def step(self, gradient: Tensors, factor: float) -> None:
        """Moves the parameters in place."""
        for name, parameter in self.parameters.items():
            decayed = gradient[name].add(parameter, alpha=self.decay)
            self.buffers[name].mul_(self.momentum).add_(decayed)
            parameter.add_(self.buffers[name], alpha=-(self.lr * factor))

    def keep(self) -> None:
        """Does nothing: buffers are changed in place."""


class OptimizerUpdate:
    """An optimiser of PyTorch or of the caller, on the state that a client keeps in `memory`."""

    def __init__(self, name: str, build: Build, parameters: Mapping[str, nn.Parameter], memory: Tensors) -> None:
        self.name, self.parameters, self.memory = name, parameters, memory
        self.optimizer = build(list(parameters.values()))
        self.base = [group["lr"] for group in self.optimizer.param_groups]
        for owner, entry, tensor in (_split(name, tensor) for name, tensor in memory.items()):
            if entry == _READY or not memory[f"{owner}/{_READY}"]:
                continue
            key, _, number = entry.partition(_NUMBER)
            value = _KINDS[number](tensor.item()) if number else tensor
            if owner in parameters:
                self.optimizer.state[parameters[owner]][key] = value
            elif owner.startswith(_GROUP):
                self.optimizer.param_groups[int(owner.removeprefix(_GROUP))][key] = value

    def step(self, gradient: Tensors, factor: float) -> None:
        """Moves the parameters; groups keep their learning rates relative to each other."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradient[name]
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * factor
        self.optimizer.step()

    @torch.no_grad()
    def keep(self) -> None:
        """Writes the optimiser's state to the client's tensors; raises UserError for an entry that `layout` lacks."""
        for parameter in self.parameters.values():
            parameter.grad = None
        found = dict(_entries(self.optimizer, self.parameters))
        # Parameter groups also have constants, which `layout` leaves out.
        found |= {name: value for name, value in _group_entries(self.optimizer) if name in self.memory}
        for name, value in found.items():
            if (kept := self.memory.get(name)) is None or kept.shape != value.shape:
                raise UserError(
                    f"The optimizer {self.name} changed the entry '{name}' of its state after its first step, so it "
                    "cannot be kept: use another optimizer."
                )
            if kept.data_ptr() != value.data_ptr():
                kept.copy_(value)


def _split(name: str, tensor: Tensor) -> tuple[str, str, Tensor]:
    owner, _, entry = name.rpartition("/")
    return owner, entry, tensor


def _entries(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, Tensor]]:
    """Yield an optimiser's state as tensors named "PARAMETER/ENTRY", those of numbers "PARAMETER/ENTRY#KIND"."""
    for name, parameter in parameters.items():
        if state := optimizer.state.get(parameter):
            yield f"{name}/{_READY}", torch.tensor(True)
            for key, value in state.items():
                if value is not None:
                    yield _as_tensor(f"{name}/{key}", value)


def _group_entries(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers of an optimiser's parameter groups except learning rates, as tensors."""
    for index, group in enumerate(optimizer.param_groups):
        yield f"{_GROUP}{index}/{_READY}", torch.tensor(True)
        for key, value in group.items():
            if key not in ("params", "lr") and type(value) in (bool, int, float):
                yield _as_tensor(f"{_GROUP}{index}/{key}", value)


def _as_tensor(name: str, value: Any) -> tuple[str, Tensor]:
    if isinstance(value, Tensor):
        return name, value
    if (kind := type(value).__name__) not in _KINDS:
        raise UserError(f"The optimizer keeps '{name}', a {kind}, which cannot be stored: use another optimizer.")
    return f"{name}{_NUMBER}{kind}", torch.tensor(value, dtype=torch.float64)


@dataclass(frozen=True)
class Choice:
    """The optimiser of a run: a name, and a function of parameters; None for SGD as computed here."""

    name: str
    build: Build | None = None

    def layout(self, model: nn.Module) -> Tensors:
        """Return zeros in the shapes of the state that the optimiser keeps for one model; none for SGD.

        Raise UserError if it cannot be made, has no parameters, or cannot make a step.
        """
        if self.build is None:
            return {}
        own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        parameters = {name: nn.Parameter(p.detach().clone()) for name, p in own.items()}
        optimizer = self.build(list(parameters.values()))
        before = dict(_group_entries(optimizer))
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        try:
            optimizer.step()
        except Exception as error:  # foreign code may raise any error
            raise UserError(f"The optimizer {self.name} fails in its first step ({reason_of(error)}).") from error
        found = dict(_entries(optimizer, parameters))
        after = dict(_group_entries(optimizer))
        changed = {name for name, value in after.items() if name not in before or value != before[name]}
        flags = {f"{name.partition('/')[0]}/{_READY}" for name in changed}
        found |= {name: after[name] for name in sorted(changed | flags)}
        return {name: torch.zeros_like(value) for name, value in found.items()}


def torch_optimizers() -> dict[str, type[Optimizer]]:
    """Return PyTorch's optimisers that need nothing but gradients, by their names in small letters."""
    found = {name: value for name, value in vars(torch.optim).items() if isinstance(value, type)}
    fit = {name: cls for name, cls in found.items() if issubclass(cls, Optimizer) and name not in _UNFIT}
    return {name.lower(): cls for name, cls in fit.items() if cls is not Optimizer}


def make_choice(name: str, own: Callable[..., Any] | None, lr: float, decay: float) -> Choice:
    """Return the optimiser of that name: "sgd", one of PyTorch's, or the caller's `own` class or function.

    PyTorch's are called with the learning rate and the weight decay, the caller's with the learning rate. Raise
    UserError for an unknown name.
    """
    if name == SGD:
        return Choice(name)
    known: dict[str, Callable[..., Any]] = dict(torch_optimizers())
    if own is None and name not in known:
        raise unknown("optimizer", name, known)

    decays = own is None and "weight_decay" in signature(known[name]).parameters
    settings = {"weight_decay": decay} if decays else {}

    def build(parameters: list[nn.Parameter]) -> Optimizer:
        try:
            found = (own or known[name])(parameters, lr=lr, **settings)
        except Exception as error:  # foreign code may raise any error
            called = "it is called with the parameters and lr="
            raise UserError(f"The optimizer {name} cannot be made ({reason_of(error)}): {called}.") from error
        if not isinstance(found, Optimizer):
            raise UserError(f"The optimizer {name} is a {type(found).__name__}: return a torch.optim.Optimizer.")
        held = {id(parameter) for group in found.param_groups for parameter in group["params"]}
        if not held & {id(parameter) for parameter in parameters}:
            raise UserError(f"The optimizer {name} has none of the parameters that it is called with: pass them to it.")
        return found

    return Choice(name, build)
