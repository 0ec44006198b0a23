import pytest

from factorized_fl.engine.choice import one_by_one, trains_otherwise
from factorized_fl.methods import METHODS, Method
from factorized_fl.methods.fedprox import FedProx


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_package_is_computed_side_by_side(name: str) -> None:
    assert not one_by_one(METHODS[name]())
    assert not trains_otherwise(METHODS[name]())  # or the fast engine would pass it to the reference engine


def test_an_overridden_gradient_is_computed_client_by_client_unless_its_class_sets_side_by_side() -> None:
    class Same(FedProx):
        pass

    class Other(FedProx):
        gradient = Method.gradient

    class Elementwise(Other):
        side_by_side = True
        gradient = Method.gradient

    assert [one_by_one(method()) for method in (Same, Other, Elementwise)] == [False, True, False]
