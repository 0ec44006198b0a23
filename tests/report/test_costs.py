"""The table of methods: published costs are shown of the paper's methods only."""

from dataclasses import replace

import pytest

from factorized_fl.methods import METHODS, register
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.report.costs import method_cost


class Inheriting(FedAvg):
    name = "inheriting"


class Publishing(FedAvg):
    name = "publishing"
    card = replace(FedAvg.card, published_gb=1.5)


@pytest.mark.parametrize(
    ("method", "published"),
    [(METHODS["fedavg"], 20.39), (METHODS["fedprox"], 20.39), (Inheriting, None), (Publishing, 1.5)],
)
def test_a_published_cost_is_not_inherited_by_a_method_of_ones_own(
    method: type[FedAvg], published: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method.name not in METHODS:
        monkeypatch.setitem(METHODS, method.name, method)  # is removed again after the test
        register(method)
    cost = method_cost(method())
    assert cost.published == published
    assert cost.formula_a == pytest.approx(20.388, abs=5e-4)


def test_extra_payloads_count_as_serialised() -> None:
    fedavg, scaffold, fedcac = (method_cost(METHODS[name]()).serialised for name in ("fedavg", "scaffold", "fedcac"))
    assert scaffold == pytest.approx(2 * fedavg, rel=1e-3)
    assert fedcac == pytest.approx((1 + 50 / 99) * fedavg, rel=1e-3)  # marks of every parameter up, in 50 rounds
