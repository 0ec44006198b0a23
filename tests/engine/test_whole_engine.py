"""The CUDA engine as a whole without a GPU: its kernels in Triton's interpreter, its graphs as plain calls."""

import contextlib
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton is not installed (PyTorch's CUDA builds bring it)")

from factorized_fl.config import from_table
from factorized_fl.core.views import Batch, Evaluated
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.engine.resnet9_cuda import engine as cuda
from factorized_fl.engine.resnet9_cuda.step import Step
from factorized_fl.engine.resnet9_cuda.weights import LaidOut
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="test_cuda.py does this on the GPU itself")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace streams and graphs by plain calls, and LaidOut, for which the interpreter takes minutes, by PyTorch."""

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    def capture(step: Step) -> None:
        step.graph = SimpleNamespace(replay=lambda: (step.engine.model.train(), step._step()))

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(Step, "_capture", capture)
    monkeypatch.setattr(LaidOut, "apply", lambda weight, dtype: weight.permute(0, 1, 3, 4, 2).to(dtype).contiguous())


def federation(method: str, recalibrate: bool = False) -> Federation:
    """Two clients with a step of two images of 16 pixels each."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(9) % 3
    images = torch.randint(0, 140, (9, 3, 16, 16), generator=generator)
    for label in range(3):
        images[labels == label, :, 5 * label : 5 * label + 3] += 110
    source = ImageSet("bands", images.to(torch.uint8), labels, tuple("abc"))
    settings = {"clients": 2, "batch_size": 2, "epochs": 1, "lr": 1e-6, "permuted": True, "precision": "fp32"}
    config = from_table({**settings, "method": method, "augment": "none", "recalibrate": recalibrate})
    scenario = build_scenario([source], ((0.5,) * 3, (0.25,) * 3), clients=2, permuted=True, train_share=0.5)
    return build_federation(config, scenario, torch.device("cpu"), "reference")


@pytest.mark.parametrize("recalibrate", [False, True])
def test_two_rounds_are_the_reference_engines(recalibrate: bool) -> None:
    """The model is dense, because the interpreter takes minutes for RankOneWeight, which has its own tests."""
    theirs, ours = (federation("fedavg", recalibrate=recalibrate) for _ in range(2))
    ours.engine = cuda.CudaEngine(ours.engine, lanes=2)
    for round_number in (1, 2):
        bits: list[dict[int, Evaluated]] = [{}, {}]
        wanted = run_round(theirs, round_number, keep=bits[0].update)[0]
        found = run_round(ours, round_number, keep=bits[1].update)[0]
        assert all(torch.equal(bits[0][k].right, bits[1][k].right) for k in bits[0] | bits[1])
        for one, other in zip(found, wanted, strict=True):
            assert (one["steps"], one["correct"]) == (other["steps"], other["correct"])
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
            assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    state = ours.clients.state.common
    for name, tensor in theirs.clients.state.common.items():
        if not name.endswith("_tracked"):
            off, size = ((values.double() ** 2).mean().sqrt() for values in (state[name] - tensor, tensor))
            assert off <= 1e-6 + 1e-5 * size, name


def test_a_step_gives_the_gradients_of_some_of_the_parameters() -> None:
    """Frozen parameters require this; the weights that are not named are those of the lanes."""
    ours = federation("fedavg")
    engine = cuda.CudaEngine(ours.engine, lanes=2)
    step = Step(engine, ours.clients)
    engine.model.train()
    step.pixels.copy_(torch.randn(step.pixels.shape, generator=torch.Generator().manual_seed(1)))
    batch = Batch(step.pixels[0], step.labels[0])
    some = {name: tensor for name, tensor in step.parameters.items() if name.startswith("head.")}
    whole, part = step.loss_gradient(step.parameters, batch), step.loss_gradient(some, batch)
    assert set(part) == {"head.weight", "head.bias"}
    assert all(torch.equal(gradient, whole[name]) for name, gradient in part.items())


def test_candidates_are_evaluated_in_batches_of_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three held-out images take a batch of four, of which one is padding that does not count."""
    ours = federation("fedavg")
    clients = [
        replace(c, holdout=c.test.repeat(4)[:count]) for c, count in zip(ours.scenario.clients, (3, 4), strict=True)
    ]
    ours.engine.scenario = replace(ours.scenario, clients=tuple(clients))
    wanted, engine = ours.engine, cuda.CudaEngine(ours.engine, lanes=2)
    plain, seen = engine._plain, []
    monkeypatch.setattr(engine, "_plain", lambda chosen: (seen.append(tuple(chosen.shape)), plain(chosen))[1])
    for k in range(2):
        own = ours.clients.state.client(k)
        models = {name: torch.stack([own[name], 1.01 * own[name]]) for name in ours.clients.momentum.common}
        found = engine.validation_losses(k, own, models)
        assert found == pytest.approx(wanted.validation_losses(k, own, models), rel=1e-5)
        assert found[0] != found[1]
    assert seen == [(2, 4), (2, 4)]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (83, 128), (128, 128), (129, 256), (369, 384)])
def test_few_sizes_hold_all_images(count: int, size: int) -> None:
    assert cuda.few_sizes(count) == size
