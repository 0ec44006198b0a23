"""The compiled engine without a GPU: its lanes, schedule and steps, with plain calls in place of captured graphs."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from factorized_fl.core.views import Batch, Local, Tensors
from factorized_fl.engine import choice
from factorized_fl.engine.choice import capturable
from factorized_fl.engine.compiled.engine import CompiledEngine
from factorized_fl.methods import METHODS, Method
from factorized_fl.nn.models import MODELS
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from tests.engine.test_other_models import Dropping, Tied
from tests.tiny import tiny_config, tiny_scenario, tiny_set


def federation(engine: str, method: str, **settings: Any) -> Federation:
    config = tiny_config(method, **settings)
    domains = (tiny_set("bars", 3, 90),) if config.build_method().needs_agreeing_labels else None
    return build_federation(config, tiny_scenario(config, domains), torch.device("cpu"), engine)


def assert_same_rounds(method: str, exactly: bool = True, **settings: Any) -> CompiledEngine:
    """Runs two rounds with both engines and compares all that the clients and the server hold."""
    theirs, ours = (federation(engine, method, **settings) for engine in ("reference", "compiled"))
    for round_number in (1, 2):
        wanted, found = (run_round(each, round_number)[0] for each in (theirs, ours))
        for one, other in zip(found, wanted, strict=True):
            assert one["steps"] == other["steps"]
            assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-6)
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    compared = ours.tensors
    for name, tensor in theirs.tensors.items():
        if exactly:
            assert torch.equal(compared[name], tensor), name
        else:
            assert torch.allclose(compared[name].double(), tensor.double(), rtol=1e-5, atol=1e-6), name
    assert isinstance(ours.engine, CompiledEngine)
    return ours.engine


# Further models, kept tensors, extra payloads, several phases, several batches in a step, a penalty on features.
@pytest.mark.parametrize(
    "method", ["factorized-peers", "per-fedavg", "ditto", "scaffold", "fedproto", "pfedme", "fedrep", "mr-mtl"]
)
def test_two_rounds_are_the_reference_engines(method: str) -> None:
    engine = assert_same_rounds(method, fraction=0.75, permuted=not METHODS[method].needs_agreeing_labels)
    assert all(len(lanes) > 1 for lanes in engine.lanes.values())


def test_clients_with_different_numbers_of_classes_have_lanes_of_their_own() -> None:
    engine = assert_same_rounds("factorized-fl")
    assert {key: len(lanes) for key, lanes in engine.lanes.items()} == {(3, 0): 2, (5, 0): 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "lr": 1e-3},
        {"schedule": "cosine"},
        {"ema": 0.5},
        {"clip_norm": 0.1},
        {"loss": "balanced-cross-entropy"},
        {"augment": "paper"},
        {"penalty": "epoch"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_other_training_is_the_reference_engines(settings: dict[str, Any]) -> None:
    options = {"options": {"penalty": settings["penalty"]}} if "penalty" in settings else settings
    assert_same_rounds("factorized-fl-beta", epochs=2, **options)


def test_the_network_may_draw_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "cnn", Dropping)
    assert assert_same_rounds("fedavg").draws


def test_the_network_may_share_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "cnn", Tied)
    assert not assert_same_rounds("fedavg").draws


def test_clients_with_less_than_one_batch_train_on_the_reference_engine() -> None:
    engine = assert_same_rounds("fedavg", batch_size=500)
    assert not engine.lanes


def test_a_step_that_cannot_be_captured_trains_on_the_reference_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("called a synchronizing CUDA operation\nmore")

    monkeypatch.setattr("factorized_fl.engine.compiled.engine.LocalStep", fail)
    with pytest.warns(UserWarning, match=r"cannot be captured \(called a synchronizing CUDA operation\)"):
        engine = assert_same_rounds("fedavg")
    assert set(map(len, engine.lanes.values())) == {0}


def test_a_gradient_of_ones_own_is_captured_only_if_its_class_says_so() -> None:
    class Own(Method):
        name = "own"

        def gradient(self, local: Local, parameters: Tensors, batches: list[Batch]) -> Tensors:  # type: ignore[override]
            return local.loss_gradient(parameters, batches[0])

    class Declared(Own):
        capturable = True
        gradient = Own.gradient

    class Inherited(METHODS["fedprox"]):  # type: ignore[misc,name-defined]
        pass

    assert [capturable(method()) for method in (Own, Declared, Inherited)] == [False, True, True]
    assert not capturable(METHODS["apfl"]())  # it reads a share in Python


def test_a_gpu_gets_the_compiled_engine_for_other_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice alone, as a GPU would see it."""
    made: list[str] = []
    work = federation("reference", "fedavg").engine.work  # type: ignore[attr-defined]
    object.__setattr__(work, "device", torch.device("cuda"))
    monkeypatch.setattr(choice, "CompiledEngine", lambda work: made.append("compiled"))
    monkeypatch.setattr(choice, "ReferenceEngine", lambda work: made.append("reference"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    choice.build_engine("auto", work)
    object.__setattr__(work, "method", METHODS["apfl"]())
    with pytest.warns(UserWarning, match="does not say capturable = True"):
        choice.build_engine("auto", work)
    object.__setattr__(work, "method", METHODS["fedavg"]())
    object.__setattr__(work, "budget", object())
    with pytest.warns(UserWarning, match="training is differentially private"):
        choice.build_engine("auto", work)
    assert made == ["compiled", "reference", "reference"]


@pytest.mark.parametrize("honest", [True, False])
def test_a_record_that_computes_something_else_is_refused(honest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose labels are constants: the check uses other labels than the capture."""
    ours = federation("compiled", "fedavg")
    run_round(ours, 1)
    engine = ours.engine
    assert isinstance(engine, CompiledEngine)
    (step,) = engine.lanes[3, 0][0].steps
    labels = [batch.labels.clone() for batch in step.batches]

    @torch.enable_grad()
    def replay() -> None:
        if not honest:
            for batch, recorded in zip(step.batches, labels, strict=True):
                batch.labels.copy_(recorded)
        step.losses, step.gradient = step._compute()
        for batch, recorded in zip(step.batches, labels, strict=True):
            batch.labels.copy_(recorded.flip(0))

    step.graph = SimpleNamespace(replay=replay)  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
    with nullcontext() if honest else pytest.raises(RuntimeError, match="gives other results"):
        step._check()
