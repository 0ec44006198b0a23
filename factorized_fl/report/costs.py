"""The communication cost of methods in the paper's setting: ResNet-9, 20 clients, 50 rounds."""

from dataclasses import dataclass

import torch

from factorized_fl.core.ledger import EXTRA, formula_bytes
from factorized_fl.core.payload import measure
from factorized_fl.core.roles import roles
from factorized_fl.core.views import Tensors
from factorized_fl.methods import METHODS, Method
from factorized_fl.nn import build_model
from factorized_fl.simulate.networks import travels

CLIENTS, ROUNDS, CLASSES = 20, 50, 10


@dataclass(frozen=True)
class MethodCost:
    """Gigabytes of a whole run of all clients with agreeing labels; a dense mu counts in full."""

    formula_a: float
    formula_b: float
    serialised: float
    published: float | None


def method_cost(method: Method) -> MethodCost:
    """Return the cost of a run, from the counted and serialised size of one model."""
    model = method.parametrize(build_model("resnet9", CLASSES), torch.Generator().manual_seed(0), True)
    role_of = roles(model)
    tensors = {
        name: torch.ones_like(tensor) if role_of[name].kind == "mu" else tensor
        for name, tensor in model.state_dict().items()
    }
    cost = method.card.cost(method, tensors, role_of)
    formula = formula_bytes((round_number, cost.up, cost.down) for round_number in range(1, ROUNDS + 1))
    names = [name for name, role in role_of.items() if travels(method, name, role, True)]
    shared = _full({name: tensors[name] for name in names})
    to, back = (hook(tensors, frozenset(names), role_of) for hook in (method.extra_up, method.extra_down))
    down = measure(shared)[1] * method.card.models_down(method)
    if back:
        down += measure(shared | _full(back, EXTRA))[1] - measure(shared)[1]
    vector = method.fingerprint(tensors, role_of) if shared else None
    if vector is not None and not method.fingerprint_is_shared:
        shared["fingerprint"] = (tuple(vector.shape), vector.dtype, vector.numel())
    up = measure(shared | _full(to, EXTRA))[1]
    return MethodCost(
        formula_a=formula["formula_a_bytes"] * CLIENTS / 1e9,
        formula_b=formula["formula_b_bytes"] * CLIENTS / 1e9,
        serialised=(up * ROUNDS + down * (ROUNDS - 1)) * CLIENTS / 1e9,
        published=method.card.published_gb,
    )


def _full(tensors: Tensors, prefix: str = "") -> dict[str, tuple[tuple[int, ...], torch.dtype, int]]:
    """Return shapes, types and numbers of entries as `measure` takes them, with every entry counted as not zero."""
    return {prefix + name: (tuple(t.shape), t.dtype, t.numel()) for name, t in tensors.items()}


def method_costs() -> dict[str, MethodCost]:
    """Return the cost of every method with its default options."""
    return {name: method_cost(method()) for name, method in METHODS.items()}
