import pytest
import torch

from factorized_fl.core.clients import Engine
from factorized_fl.engine import Work, choice
from factorized_fl.engine.choice import one_by_one, trains_otherwise
from factorized_fl.methods import METHODS, Method
from factorized_fl.methods.fedprox import FedProx
from factorized_fl.simulate import build
from tests.tiny import tiny_config, tiny_scenario, tiny_set

# Methods of the Factorized-FL paper, its ablations and ours: the fast engine runs all of them.
FAST = (
    *("stand-alone", "fedavg", "fedprox", "clustered-fl", "per-fedavg", "fedfomo", "pfedpara", "factorized-fl"),
    *("factorized-fl-beta", "factorized-fedavg", "without-mu", "random-matching", "worst-matching", "mixed-layout"),
    *("factorized-peers", "fedper", "fedbn", "fedavgm", "knn-per", "pacfl"),
)


@pytest.mark.parametrize("name", FAST)
def test_these_methods_are_computed_side_by_side(name: str) -> None:
    assert not one_by_one(METHODS[name]())
    assert not trains_otherwise(METHODS[name]())  # or the fast engine would pass it to the reference engine


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {*FAST}))
def test_the_other_methods_have_local_training_of_their_own(name: str) -> None:
    assert one_by_one(METHODS[name]()) or trains_otherwise(METHODS[name]())


@pytest.mark.parametrize("name", FAST)
def test_the_fast_engine_refuses_none_of_these_methods(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str | None] = []

    def look(engine: str, work: Work) -> Engine:
        reasons.append(choice._why_not(work))
        return choice.build_engine(engine, work)

    monkeypatch.setattr(build, "build_engine", look)
    config = tiny_config(name, permuted=False)
    build.build_federation(config, tiny_scenario(config, (tiny_set("bars", 3, 90),)), torch.device("cpu"))
    assert reasons == ["SmallCNN is not a ResNet-9"]  # the network is refused, not the method


def test_an_overridden_gradient_is_computed_client_by_client_unless_its_class_sets_side_by_side() -> None:
    class Same(FedProx):
        pass

    class Other(FedProx):
        gradient = Method.gradient

    class Ending(FedProx):
        finish = Method.finish

    class Elementwise(Other):
        side_by_side = True
        gradient = Method.gradient

    assert [one_by_one(method()) for method in (Same, Other, Ending, Elementwise)] == [False, True, True, False]
