"""Models with what the built-in ones lack: other BatchNorm momenta, frozen parameters, tied weights, dropout."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from factorized_fl.core.errors import UserError
from factorized_fl.core.stack import client_state, untied_state
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.export.export import export_client
from factorized_fl.export.package import load_network, read_package
from factorized_fl.methods import METHODS
from factorized_fl.nn.models import MODELS, Head, Scale, SmallCNN
from factorized_fl.silo.site import Site
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import Stopped, run_federation
from factorized_fl.simulate.scenario import build_scenario_of
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio
from tests.tiny import tiny_config, tiny_federation


class OtherMomenta(SmallCNN):
    """One BatchNorm averages over all batches since it was made, the others follow the batches faster or slower."""

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__(channels, scale, head)
        for block, momentum in ((self.conv1, 0.3), (self.conv2, None), (self.conv3, 0.02)):
            block.norm.momentum = momentum


class Frozen(SmallCNN):
    """The first convolution does not train."""

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__(channels, scale, head)
        self.conv1.conv.weight.requires_grad_(False)


class Tied(nn.Module):
    """Two convolutions have one weight."""

    def __init__(self, channels: int, scale: Scale, head: Head) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, scale(16), 3, 2, 1)
        self.second = nn.Conv2d(scale(16), scale(16), 3, 1, 1, bias=False)
        self.third = nn.Conv2d(scale(16), scale(16), 3, 1, 1)
        self.third.weight = self.second.weight
        self.head = head(scale(16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.head(torch.relu(self.third(torch.relu(self.second(x)))).amax((2, 3)))


class Dropping(SmallCNN):
    """Dropout before the classifier."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv3(self.conv2(self.conv1(x)))
        return self.head(nn.functional.dropout(x.amax((2, 3)), 0.4, self.training))


Use = Callable[[Callable[..., nn.Module]], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Puts a model in the place of the small CNN."""
    return lambda model: monkeypatch.setitem(MODELS, "cnn", model)


def train(federation: Federation, round_number: int = 1, clients: Any = (0, 1, 2, 3)) -> None:
    federation.clients.train(round_number, clients, federation.engine)


def reloaded(federation: Federation, k: int) -> nn.Module:
    """Client k's model as a module of its own."""
    model = copy.deepcopy(federation.engine.models[len(federation.scenario.clients[k].classes)])
    for name, tensor in client_state(model).items():
        tensor.copy_(federation.clients.state.client(k)[name])
    return model


def plain_images(federation: Federation, positions: Tensor) -> Tensor:
    return (federation.scenario.images[positions].float() / 255 - 0.5) / 0.25


def train_by_hand(federation: Federation, model: nn.Module, rounds: int) -> None:
    """Client 0 alone, with PyTorch's own optimiser."""
    config = federation.config
    optimiser = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], config.lr, config.momentum, weight_decay=config.weight_decay
    )
    model.train()
    for round_number in range(1, rounds + 1):
        for batch in federation.engine.batches(round_number, 0):
            optimiser.zero_grad()
            cross_entropy(model(batch.images), batch.labels).backward()
            optimiser.step()


# -- BatchNorm


@pytest.mark.parametrize("momentum", [0.3, None, "different"])
def test_recalibration_does_not_depend_on_the_momentum_of_batch_norm(momentum: float | str | None, use: Use) -> None:
    """Recalibrated statistics are the mean of batch statistics, layer by layer."""

    def model(channels: int, scale: Scale, head: Head) -> nn.Module:
        made = OtherMomenta(channels, scale, head)
        if momentum != "different":
            for block in (made.conv1, made.conv2, made.conv3):
                block.norm.momentum = momentum
        return made

    use(model)
    federation = tiny_federation("fedavg", recalibrate=True)
    for round_number in (1, 2):
        run_round(federation, round_number)
    for k in (0, 3):
        own = reloaded(federation, k)
        before = [m.momentum for m in federation.engine.models[3].modules() if isinstance(m, nn.BatchNorm2d)]
        assert before == ([0.3, None, 0.02] if momentum == "different" else [momentum] * 3)
        inputs: dict[str, list[Tensor]] = {}
        norms = {name: m for name, m in own.named_modules() if isinstance(m, nn.BatchNorm2d)}
        own.eval()
        for name, norm in norms.items():
            norm.train()
            norm.register_forward_hook(
                lambda m, given, out, name=name, inputs=inputs: inputs.setdefault(name, []).append(given[0])
            )
        batches = federation.engine.work.plain_batches(k)
        assert len(batches) > 1
        with torch.no_grad():
            for chosen in batches:
                own(plain_images(federation, chosen))
        tensors = federation.engine.tested(2, k, federation.clients)
        for name in norms:
            mean = torch.stack([x.mean((0, 2, 3)) for x in inputs[name]]).mean(0)
            variance = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in inputs[name]]).mean(0)
            torch.testing.assert_close(tensors[f"{name}.running_mean"], mean, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(tensors[f"{name}.running_var"], variance, rtol=1e-4, atol=1e-6)
            assert tensors[f"{name}.num_batches_tracked"] == 2 * len(batches)  # training alone is counted


# -- frozen parameters


@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_do_not_change_and_have_no_momentum(method: str, use: Use) -> None:
    """Three clients and weights 1/3: a mean of equal numbers would be rounded."""
    use(Frozen)
    federation = tiny_federation(method, clients=3)
    parameters = dict(federation.engine.models[3].named_parameters())
    frozen = [name for name, p in parameters.items() if not p.requires_grad]
    assert frozen
    assert all(name.startswith("conv1.conv.") for name in frozen)
    state, momentum = federation.clients.state, federation.clients.momentum
    before = {name: tensor.clone() for name, tensor in state.common.items()}
    for round_number in (1, 2, 3):
        run_round(federation, round_number)
    fixed = {name: parameters[name].detach().clone() for name in frozen}
    run_round(federation, 4)
    for name in frozen:  # they are held once, in the model
        assert torch.equal(parameters[name], fixed[name]), name
        assert name not in state.common
        assert name not in momentum.client(0)
        assert name not in federation.shared
    trained = [name for name, p in parameters.items() if p.requires_grad and name in state.common]
    assert all(not torch.equal(state.common[name], before[name]) for name in trained)
    assert set(momentum.client(0)) == {name for name, p in parameters.items() if p.requires_grad}


def test_a_model_with_a_frozen_layer_equals_a_plain_loop(use: Use) -> None:
    use(Frozen)
    federation = tiny_federation("stand-alone", weight_decay=1e-2)
    model = reloaded(federation, 0)
    train_by_hand(federation, model, 2)
    for round_number in (1, 2):
        train(federation, round_number)
    ours = federation.engine.models[3].state_dict() | federation.clients.state.client(0)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


# -- tied weights


def test_tied_weights_train_as_one_parameter_with_one_entry(use: Use) -> None:
    use(Tied)
    federation = tiny_federation("stand-alone", weight_decay=1e-2)
    names = [name for name in federation.clients.state.client(0) if name in ("second.weight", "third.weight")]
    assert names == ["second.weight"]
    assert "third.weight" not in federation.clients.momentum.client(0)
    assert "third.weight" not in federation.roles
    model = reloaded(federation, 0)
    train_by_hand(federation, model, 2)
    for round_number in (1, 2):
        train(federation, round_number)
    found = federation.clients.state.client(0)
    for name, tensor in untied_state(model).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", ["fedavg", "per-fedavg", "fedfomo"])
def test_tied_weights_travel_once_and_are_tested_and_exported(method: str, use: Use, tmp_path: Path) -> None:
    use(Tied)
    options = {"test": "adapted"} if method == "per-fedavg" else {}
    federation = tiny_federation(method, options=options)
    for round_number in (1, 2, 3):
        records, _ = run_round(federation, round_number)
    body = {name: p for name, p in federation.engine.models[3].named_parameters() if not name.startswith("head.")}
    assert federation.shared == set(body)
    assert records[0]["up_parameters"] == sum(p.numel() for p in body.values())
    for k in (0, 3):
        client, model = federation.scenario.clients[k], reloaded(federation, k)
        for name, tensor in untied_state(model).items():
            tensor.copy_(federation.engine.tested(3, k, federation.clients)[name])
        with torch.no_grad():
            scores = model.eval()(plain_images(federation, client.test))
        right = scores.argmax(1) == client.labelling[federation.scenario.labels[client.test]]
        assert records[k]["correct"] == int(right.sum())
        exported = export_client(federation, k, 3, 3, tmp_path / str(k), client.name)
        assert (exported.correct, exported.same_class) == (records[k]["correct"], len(client.test))
        network = load_network(tmp_path / str(k), read_package(tmp_path / str(k)))
        with torch.no_grad():
            torch.testing.assert_close(network(federation.scenario.images[client.test]), scores, rtol=1e-4, atol=1e-5)


# -- dropout


class StopAfter:
    """Stops a run at the end of a round, or in the middle of it as Ctrl-C does."""

    def __init__(self, number: int, middle: bool) -> None:
        self.number, self.middle = number, middle

    def started(self, federation: Federation, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None:
        if self.middle and (round_number, client) == (self.number, 1):
            raise KeyboardInterrupt

    def round_done(self, round_number: int, records: Any) -> None:
        if not self.middle and round_number == self.number:
            raise Stopped


DROPPING = [("fedavg", {}), ("per-fedavg", {"test": "adapted"}), ("fedala", {}), ("factorized-fl", {})]


@pytest.mark.parametrize(("method", "options"), DROPPING, ids=[method for method, _ in DROPPING])
def test_a_model_with_dropout_resumes_bit_for_bit(
    method: str, options: dict[str, Any], use: Use, images: Path, tmp_path: Path
) -> None:
    use(Dropping)
    config = tiny_config(method, options=options)
    wanted = run_federation(config, tmp_path / "whole", data=images).path
    for number, middle in ((1, False), (2, True)):
        out = tmp_path / f"stopped-{number}"
        with pytest.raises(KeyboardInterrupt if middle else Stopped):
            run_federation(config, out, data=images, observers=[StopAfter(number, middle)])
        torch.rand(number)  # the resumed process has other numbers in its global generator
        run_federation(config, out, data=images, resume=True)
        for name in ("checkpoint.safetensors", "metrics.jsonl", "summary.json", "analysis.json"):
            assert (out / name).read_bytes() == (wanted / name).read_bytes(), name


@pytest.mark.parametrize(("method", "options"), DROPPING, ids=[method for method, _ in DROPPING])
def test_the_order_of_clients_does_not_change_what_dropout_draws(
    method: str, options: dict[str, Any], use: Use
) -> None:
    use(Dropping)
    found = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        federation = tiny_federation(method, options=options)
        run_round(federation, 1)
        downloads = federation.server.prepare(2, range(4), lambda client, tensors: [])
        federation.clients.receive(2, downloads.items(), {k: k for k in order}, federation.engine)
        train(federation, 2, order)
        results = federation.engine.evaluate(2, order, federation.clients)
        found.append(({name: t.clone() for name, t in federation.tensors.items()}, results))
    (first, tested), (second, tested_again) = found
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert tested == tested_again


def test_dropout_differs_between_clients_rounds_and_seeds(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Dropping)
    drawn: list[Tensor] = []
    gradient = METHODS["fedavg"].gradient
    note = lambda *given: drawn.append(torch.rand(3)) or gradient(*given)  # noqa: E731
    monkeypatch.setattr(METHODS["fedavg"], "gradient", note)
    for seed in (1, 2):
        federation = tiny_federation("fedavg", seed=seed)
        before = torch.get_rng_state()
        for round_number in (1, 2):
            train(federation, round_number)
        assert torch.equal(torch.get_rng_state(), before)  # the caller's own draws do not depend on a run
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn)


@pytest.mark.parametrize("method", ["fedavg", "fedala"])
def test_dropout_between_sites_equals_one_process(method: str, use: Use, tmp_path: Path) -> None:
    use(Dropping)
    data, config = write_trio(tmp_path / "data"), trio_config(method)
    kits = kits_of(tmp_path, config)
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"))
    for round_number in range(1, config.rounds + 1):
        run_round(federation, round_number)
    for k, site in enumerate(sites.values()):
        for name, tensor in site.federation.clients.state.client(0).items():
            wanted = federation.clients.state.client(k)[name]
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=1e-6, msg=name)


# -- the GPU that is used


class SetDevice(Exception):
    """Raised in place of the call, with its argument."""


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_device(device: torch.device) -> None:
        raise SetDevice(str(device))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_with_a_number_becomes_the_current_one(images: Path, tmp_path: Path) -> None:
    with pytest.raises(SetDevice, match="cuda:1"):
        run_federation(tiny_config("fedavg"), tmp_path / "run", data=images, device="cuda:1")
    for name in ("cuda:2", "cuda:x", "cuda:", "cuda1", "gpu"):
        with pytest.raises(UserError, match=f"There is no device '{name}' here"):
            run_federation(tiny_config("fedavg"), tmp_path / "run", data=images, device=name)


@pytest.mark.usefixtures("two_gpus")
def test_a_site_makes_its_gpu_the_current_one(tmp_path: Path) -> None:
    data = write_trio(tmp_path / "data")
    kit = kits_of(tmp_path, trio_config("fedavg"))["aster"]
    with pytest.raises(SetDevice, match="cuda:1"):
        Site(kit, data / "aster", print, device="cuda:1", report=True)


@pytest.mark.usefixtures("two_gpus")
def test_the_current_gpu_stays_where_no_number_is_given(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.cuda.set_device` accepts no device without a number."""

    class Reached(Exception):
        pass

    def engine(*given: Any, **named: Any) -> None:
        raise Reached

    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *given, **named: tensor)
    monkeypatch.setattr(ReferenceEngine, "__init__", engine)
    with pytest.raises(Reached):
        run_federation(tiny_config("fedavg"), tmp_path / "run", data=images, device="auto")
