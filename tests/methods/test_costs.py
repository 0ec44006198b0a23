"""The paper's cost column for 20 clients and 50 rounds, by the formula's two conventions (GB of 1e9 bytes)."""

from functools import cache
from itertools import product

import pytest
import torch

from factorized_fl.core.ledger import formula_bytes
from factorized_fl.core.roles import roles
from factorized_fl.core.views import Cost
from factorized_fl.methods import Method, make_method
from factorized_fl.nn import Role, build_model

CLIENTS, ROUNDS = range(20), range(1, 51)


@cache
def resnet9(name: str, gamma: float = 0.95) -> tuple[dict[str, torch.Tensor], dict[str, Role]]:
    options = {"gamma": gamma, "head": "low-rank"} if name == "pfedpara" else {}
    method = make_method(name, options)
    model = method.parametrize(build_model("resnet9", 10), torch.Generator().manual_seed(0), labels_agree=True)
    return model.state_dict(), roles(model)


def cost_of(method: Method, tensors: dict[str, torch.Tensor], kinds: dict[str, Role]) -> Cost:
    return method.card.cost(method, tensors, kinds)


def gigabytes(cost: Cost) -> tuple[float, float]:
    total = formula_bytes((round_number, cost.up, cost.down) for round_number, _ in product(ROUNDS, CLIENTS))
    return total["formula_a_bytes"] / 1e9, total["formula_b_bytes"] / 1e9


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "clustered-fl", "per-fedavg"])
def test_dense_methods(name: str) -> None:
    cost = cost_of(make_method(name, {}), *resnet9(name))
    assert (cost.up, cost.down) == (2_574_282, 2_574_282)
    assert gigabytes(cost) == (pytest.approx(20.388, abs=5e-4), pytest.approx(20.594, abs=5e-4))


def test_stand_alone() -> None:
    assert cost_of(make_method("stand-alone", {}), *resnet9("stand-alone")) == Cost(0, 0)


@pytest.mark.parametrize(("models", "a", "b"), [(10, 111.21, 113.27), (5, 60.75, 61.78)])
def test_fedfomo(models: int, a: float, b: float) -> None:
    cost = cost_of(make_method("fedfomo", {"models": models}), *resnet9("fedfomo"))
    assert gigabytes(cost) == (pytest.approx(a, abs=5e-3), pytest.approx(b, abs=5e-3))


@pytest.mark.parametrize(("gamma", "a", "b"), [(0.8, 7.34, 7.42), (0.95, 9.47, 9.56)])
def test_pfedpara(gamma: float, a: float, b: float) -> None:
    cost = cost_of(make_method("pfedpara", {"gamma": gamma, "head": "low-rank"}), *resnet9("pfedpara", gamma))
    assert gigabytes(cost) == (pytest.approx(a, abs=5e-3), pytest.approx(b, abs=5e-3))


@pytest.mark.parametrize("name", ["factorized-fl", "random-matching", "worst-matching"])
def test_factorized_fl(name: str) -> None:
    cost = cost_of(make_method(name, {}), *resnet9(name))
    assert (cost.up, cost.down) == (65_880, 344)
    assert gigabytes(cost) == (pytest.approx(0.265, abs=5e-4), pytest.approx(0.265, abs=5e-4))


def filled(surviving: int) -> dict[str, torch.Tensor]:
    """Factorised tensors in which the given number of entries of mu reach the threshold."""
    tensors, kinds = resnet9("factorized-fl-beta")
    tensors = dict(tensors)
    for name, role in kinds.items():
        if role.kind == "mu":
            here = min(surviving, tensors[name].numel())
            flat = torch.full((tensors[name].numel(),), 4e-4)
            flat[:here] = -6e-4
            tensors[name] = flat.view_as(tensors[name])
            surviving -= here
    assert surviving == 0
    return tensors


@pytest.mark.parametrize(("total", "b"), [(2_283_000, 18.26), (2_839_266, 22.71), (270_882, 2.17)])
def test_beta_counts_the_surviving_mu(total: int, b: float) -> None:
    """The published size, all entries of mu, and none."""
    method = make_method("factorized-fl-beta", {})
    cost = cost_of(method, filled(total - 270_882), resnet9("factorized-fl-beta")[1])
    assert (cost.up, cost.down) == (total, total)
    assert gigabytes(cost)[1] == pytest.approx(b, abs=5e-3)


def test_without_mu() -> None:
    cost = cost_of(make_method("without-mu", {}), *resnet9("without-mu"))
    assert (cost.up, cost.down) == (270_882, 270_882)
    assert gigabytes(cost)[1] == pytest.approx(2.17, abs=5e-3)
