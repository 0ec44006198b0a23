"""The CUDA engine against the reference engine, in fp32, for every method. These tests need a GPU."""

import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factorized_fl.config import from_table
from factorized_fl.data.images import ImageSet
from factorized_fl.data.scenarios import build_scenario
from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

NORMAL = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def pictures(count: int = 900, classes: int = 5) -> ImageSet:
    """Class c is a bright stripe at row 3 c on noise."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(count) % classes
    images = torch.randint(0, 140, (count, 3, 16, 16), generator=generator)
    for label in range(classes):
        images[labels == label, :, 3 * label : 3 * label + 2] += 110
    return ImageSet("stripes", images.to(torch.uint8), labels, tuple(map(str, range(classes))))


def learning_rate(method: str) -> float:
    """Return a rate at which 25 steps with BatchNorm change the model, but do not amplify rounding errors.

    A factorised network is small at first, so what normalisation makes of a step is large: at 1e-6 it learns ten times
    as much as a dense one, and the reference engine's own losses move by up to 1.4e-4 when its first parameters change
    by the last bit; at 1e-7, where both learn as much, by 3e-6.
    """
    return 1e-7 if issubclass(METHODS[method], Factorized) else 1e-6


def federation(method: str, engine: str, **settings) -> Federation:
    rate = learning_rate(method)
    table = {"method": method, "clients": 4, "batch_size": 32, "epochs": 5, "lr": rate, "rounds": 2, "permuted": True}
    config = from_table({"precision": "fp32", **table, **settings})
    scenario = build_scenario(
        [pictures()], NORMAL, clients=config.clients, permuted=True, partition=config.partition, alpha=config.alpha
    )
    return build_federation(config, scenario, torch.device("cuda"), engine)


def relative(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the distance of two sets of tensors, all entries together, relative to the second."""
    names = [name for name, tensor in b.items() if tensor.is_floating_point()]
    far = sum(float((a[n].double() - b[n].double()).square().sum()) for n in names) ** 0.5
    return far / sum(float(b[n].double().square().sum()) for n in names) ** 0.5


def last_bit_changed(found: Federation, seed: int) -> Federation:
    """Change every parameter by about half a unit of its last place, up or down."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for name in found.clients.momentum.common:
        tensor = found.clients.state.common[name]
        tensor.mul_(1 + 6e-8 * torch.randn(tensor.shape, device="cuda", generator=generator).sign())
    return found


@pytest.mark.parametrize("method", METHODS)
def test_twenty_steps_match_the_reference_engine(method: str) -> None:
    fast, plain = federation(method, "auto"), federation(method, "reference")
    assert type(fast.engine).__name__ == "CudaEngine"
    assert type(plain.engine).__name__ == "ReferenceEngine"
    (ours, _), (theirs, _) = run_round(fast, 1), run_round(plain, 1)
    assert ours[0]["steps"] == theirs[0]["steps"] >= 20
    losses = max(
        abs(a[kind] / b[kind] - 1) for a, b in zip(ours, theirs, strict=True) for kind in ("train_loss", "loss")
    )
    parameters = relative(fast.clients.state.common, plain.clients.state.common)
    print(f"\n{method}: {ours[0]['steps']} steps, losses within {losses:.1e}, parameters within {parameters:.1e}")
    assert all(abs(a["correct"] - b["correct"]) <= 1 for a, b in zip(ours, theirs, strict=True))
    assert losses < 1e-4
    assert parameters < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_one_steps_gradient_matches_the_reference_engine(method: str) -> None:
    """After one step the momentum is the gradient, which no small learning rate can hide.

    A ReLU or a maximum that tips over changes a gradient by about 1e-3, so the yardstick is how far the reference
    engine's own gradient moves when its parameters change by the last bit.
    """
    settings = {"epochs": 1, "batch_size": 128}
    fast, plain = (federation(method, engine, **settings) for engine in ("auto", "reference"))
    nudged = [last_bit_changed(federation(method, "reference", **settings), seed) for seed in (1, 2, 3)]
    (ours, _), _ = run_round(fast, 1), run_round(plain, 1)
    for other in nudged:
        run_round(other, 1)
    assert ours[0]["steps"] == 1
    yardstick = max(relative(other.clients.momentum.common, plain.clients.momentum.common) for other in nudged)
    gradient = relative(fast.clients.momentum.common, plain.clients.momentum.common)
    print(f"\n{method}: gradient within {gradient:.1e}, the last bit moves it by {yardstick:.1e}")
    assert yardstick < 0.02
    assert gradient < 3 * yardstick


def test_unequal_clients_take_their_own_numbers_of_steps() -> None:
    settings = {"partition": "dirichlet", "alpha": 0.3, "clients": 7, "recalibrate": True}
    fast, plain = (
        federation("factorized-fl-beta", "auto", **settings),
        federation("factorized-fl-beta", "reference", **settings),
    )
    (ours, _), (theirs, _) = run_round(fast, 1), run_round(plain, 1)
    assert [r["steps"] for r in ours] == [r["steps"] for r in theirs]
    assert len({r["steps"] for r in ours}) > 2
    for a, b in zip(ours, theirs, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
    statistics = [name for name in plain.clients.state.common if ".running_" in name]
    assert statistics
    ((group, found),) = fast.engine._groups(range(7), fast.clients.state)
    for row, k in enumerate(group):
        wanted = plain.engine.tested(1, k, plain.clients)
        assert relative({n: t[row] for n, t in found.items()}, {name: wanted[name] for name in statistics}) < 1e-4


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_two_runs_are_identical(partition: str) -> None:
    """Both for equal clients and for unequal ones, one of which has less than a batch."""
    settings = {"partition": partition, "alpha": 0.3, "clients": 7, "precision": "bf16", "augment": "paper"}
    runs = [federation("factorized-fl-beta", "auto", **settings) for _ in range(2)]
    short = [k for k, client in enumerate(runs[0].scenario.clients) if len(client.train) < 32]
    assert len(short) == (partition == "dirichlet")
    for round_number in (1, 2):
        records = [run_round(run, round_number)[0] for run in runs]
        assert records[0] == records[1]
    for name, tensor in runs[0].clients.state.common.items():
        assert torch.equal(tensor, runs[1].clients.state.common[name]), name


def digest_of_a_round() -> str:
    found = federation("factorized-fl-beta", "auto", precision="bf16", augment="paper", repeatable=True)
    run_round(found, 1)
    tensors = sorted(found.clients.state.flat("state").items())
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for _, tensor in tensors)).hexdigest()


def test_two_processes_are_identical_if_that_is_asked_for() -> None:
    digests = set()
    for _ in range(2):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            digests.add(process.submit(digest_of_a_round).result())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("method", "options"), [("factorized-fl", {}), ("per-fedavg", {"test": "adapted", "inner": 1e-6})]
)
def test_confusion_matrices_match_the_reference_engine(method: str, options: dict) -> None:
    """Seven clients in groups of unequal size, whose two domains have 90 and 50 test images."""
    table = {"method": method, "options": options, "clients": 7, "batch_size": 32, "epochs": 1, "lr": 1e-6, "rounds": 1}
    config = from_table({"precision": "fp32", "permuted": True, **table})
    domains = [pictures(), replace(pictures(500), name="others")]
    scenario = build_scenario(domains, NORMAL, clients=7, permuted=True)
    fast = build_federation(config, scenario, torch.device("cuda"))
    assert type(fast.engine).__name__ == "CudaEngine"
    records, _ = run_round(fast, 1)
    order = [6, 0, 3, 1, 2, 5, 4]
    ours, theirs = (engine.confusion(1, order, fast.clients) for engine in (fast.engine, fast.engine.reference))
    for k, a, b in zip(order, ours, theirs, strict=True):
        client = scenario.clients[k]
        own = client.labelling[scenario.labels[client.test]]
        assert a.shape == (5, 5)
        assert a.sum(1).tolist() == torch.bincount(own, minlength=5).tolist()
        assert int(a.diagonal().sum()) == records[k]["correct"]
        assert int((a - b).abs().sum()) <= 2  # an image on the edge between two classes


def test_a_run_notes_its_peak_of_memory(tmp_path: Path) -> None:
    found = federation("fedavg", "auto")
    directory = run_federation(found.config, tmp_path / "run", scenario=found.scenario, device="cuda")
    state = sum(tensor.nbytes for tensor in found.tensors.values()) / 2**30
    peaks = [line["peak_gib"] for line in directory.timing()]
    assert len(peaks) == 2
    assert peaks == sorted(peaks)
    assert state < peaks[0] <= round(torch.cuda.max_memory_allocated() / 2**30, 3)


def test_checkpoints_go_from_either_engine_to_the_other() -> None:
    fast, plain = federation("fedavg", "auto"), federation("fedavg", "reference")
    run_round(fast, 1)
    plain.load({name: tensor.cpu() for name, tensor in fast.tensors.items()})
    (ours, _), (theirs, _) = run_round(fast, 2), run_round(plain, 2)
    for a, b in zip(ours, theirs, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
