"""Frozen parts: held once, in evaluation mode, never stacked, sent or checkpointed; features; what is factorised."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import factorized_fl as ffl
from factorized_fl.core.frozen import frozen_modules, frozen_names, training_mode
from factorized_fl.core.roles import find_head
from factorized_fl.simulate import build, features
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.own import own_config, own_run_scenario
from factorized_fl.simulate.run import Stopped
from tests.own.nets import float_images, own_clients
from tests.own.test_every_method import StopAfter

QUICK: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch_size": 4, "lr": 0.05}


class Pretrained(nn.Module):
    """A frozen backbone with statistics and dropout, a parameter that is frozen alone, and a head."""

    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(7)  # "pretrained": the same weights in every process
        self.backbone = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        ).requires_grad_(False)
        self.scale = nn.Parameter(torch.full((16,), 2.0), requires_grad=False)
        self.middle = nn.Linear(16, 6)
        self.head = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.backbone(x) * self.scale).relu())


class LooksTwice(Pretrained):
    """Uses its input beside the backbone, so features cannot replace it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean((1, 2, 3))[:, None]


def federation_of(model: Any = Pretrained, **settings: Any) -> Any:
    clients = (
        own_clients(float_images, (3, 3, 3), named=True) if "classifier" in settings else own_clients(float_images)
    )
    named = {**QUICK, "model": f"{model.__module__}:{model.__qualname__}", **settings}
    config = own_config(clients, settings.get("method", "fedavg"), {k: v for k, v in named.items() if k != "method"})
    scenario = own_run_scenario(clients, config)
    return build_federation(config, scenario, torch.device("cpu"), factory=model)


def test_a_frozen_part_is_no_clients_and_has_no_training_mode() -> None:
    model = Pretrained(torch.zeros(1, 2, 8, 12), 3)
    assert list(frozen_modules(model)) == ["backbone"]
    assert all(name.startswith("backbone.") or name == "scale" for name in frozen_names(model))
    assert "backbone.1.running_mean" in frozen_names(model)
    training_mode(model)
    assert model.training
    assert not any(module.training for module in model.backbone.modules())


@pytest.mark.parametrize("method", ["fedavg", "factorized-peers", "pfedpara", "fedfomo"])
def test_nothing_frozen_is_stacked_sent_or_checkpointed(method: str, tmp_path: Path) -> None:
    federation = federation_of(method=method)
    kept = {name.split(".")[0] for name in federation.clients.state.client(0)} - {"fingerprint"}
    assert kept == {"middle", "head"}
    assert not any(name.startswith(("backbone", "scale")) for name in (*federation.roles, *federation.shared))
    first, second = (federation.engine.models[count] for count in (2, 3))
    assert first.scale.data_ptr() == second.scale.data_ptr()
    settings = {**QUICK, "model": Pretrained, "method": method}
    clients = own_clients(float_images)
    whole = ffl.run(clients, tmp_path / "whole", **settings)
    assert not any("backbone" in name for name in safetensors.torch.load_file(whole.checkpoint_path))
    with pytest.raises(Stopped):
        ffl.run(clients, tmp_path / "parts", observers=[StopAfter(1)], **settings)
    parts = ffl.run(clients, tmp_path / "parts", resume=True, **settings)
    assert whole.metrics() == parts.metrics()
    wanted = Pretrained(torch.zeros(1, 2, 8, 12), 2).state_dict()
    model = parts.model(1)
    assert model.state_dict().keys() == wanted.keys()
    for name, tensor in model.state_dict().items():
        if name.startswith(("backbone", "scale")):
            assert torch.equal(tensor, wanted[name])
    client = parts.scenario.clients[0]
    right = (model(parts.scenario.images[client.test]).argmax(1) == parts.scenario.labels[client.test]).sum()
    assert int(right) == parts.summary()["clients"][0]["correct"]


def test_a_run_is_not_resumed_with_other_frozen_values(tmp_path: Path) -> None:
    shift = 0.0

    def net(example: Tensor, outputs: int) -> nn.Module:
        model = Pretrained(example, outputs)
        model.scale.data += shift
        return model

    run = ffl.run(own_clients(float_images), tmp_path / "run", model=net, **QUICK)
    (run.path / "summary.json").unlink()
    shift = 1.0
    with pytest.raises(ffl.UserError, match="the model is different"):
        ffl.run(own_clients(float_images), tmp_path / "run", model=net, resume=True, **QUICK)


def test_features_take_the_place_of_inputs_where_that_changes_nothing() -> None:
    federation = federation_of()
    assert federation.engine.scenario.images.shape == (len(federation.scenario.images), 16)
    assert federation.scenario.images.shape[1:] == (2, 8, 12)
    assert isinstance(federation.engine.models[2].backbone, nn.Identity)
    assert federation_of(LooksTwice).engine.scenario.images.shape[1:] == (2, 8, 12)


def test_features_give_the_results_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**QUICK, "model": Pretrained, "method": "factorized-peers"}
    cached = ffl.run(own_clients(float_images), tmp_path / "cached", **settings)
    monkeypatch.setattr(build, "with_features", lambda scenario, models, prepare, device: (scenario, models))
    plain = ffl.run(own_clients(float_images), tmp_path / "plain", **settings)
    first, second = (safetensors.torch.load_file(run.checkpoint_path) for run in (cached, plain))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5)


def test_the_classifier_can_be_named(tmp_path: Path) -> None:
    clients = own_clients(float_images, (3, 3, 3))
    federation = federation_of(method="fedavg", classifier="middle")
    assert {name for name, role in federation.roles.items() if role.head} == {"middle.weight", "middle.bias"}
    assert find_head(federation.engine.models[3]) == "middle"
    with pytest.raises(ffl.UserError, match=r"Unknown classifier 'fc'. Known: backbone, "):
        ffl.run(clients, tmp_path / "run", model=Pretrained, classifier="fc", **QUICK)
    with pytest.raises(ffl.UserError, match="classifier = 'head' has no effect on the network cnn"):
        ffl.run(clients, tmp_path / "run", model="cnn", classifier="head", **QUICK)


def test_layers_are_chosen_for_factorisation_and_pretrained_weights_kept() -> None:
    federation = federation_of(method="factorized-fl")
    kinds = {name: role.kind for name, role in federation.roles.items()}
    assert {"u", "v", "mu"} <= set(kinds.values())
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3)))
    x = torch.randn(2, 4)
    before = model(x)
    ffl.factorize(model, include=["2.*"], skip=["2.1"], init="fit")
    factorised = {name for name, _ in model.named_parameters() if "parametrizations" in name}
    assert {name.split(".param")[0] for name in factorised} == {"2.0"}
    torch.testing.assert_close(model(x), before)
    with pytest.raises(ffl.UserError, match=r"include names 'x.\*', but no layer has this name"):
        ffl.factorize(nn.Sequential(nn.Linear(2, 2)), include=["x.*"])
    with pytest.raises(ffl.UserError, match=r"keep_dense\) leaves no layer"):
        ffl.factorize(nn.Sequential(nn.Linear(2, 2)), include=["0"], skip=["0"])


def test_a_method_factorises_only_the_layers_that_its_options_name(tmp_path: Path) -> None:
    settings = {**QUICK, "model": Pretrained, "method": "factorized-fl-beta", "include": ["middle"], "init": "fit"}
    run = ffl.run(
        own_clients(float_images), tmp_path / "run", **{**settings, "lr": 1e-30, "sparsity": 0.0, "tau": -1.0}
    )
    names = {name.split("/")[-1] for name in safetensors.torch.load_file(run.checkpoint_path) if "/all/" in name}
    assert any("middle.parametrizations" in name for name in names)
    plain = ffl.run(
        own_clients(float_images), tmp_path / "plain", model=Pretrained, method="fedavg", **{**QUICK, "lr": 1e-30}
    )
    torch.testing.assert_close(run.model(1).middle.weight, plain.model(1).middle.weight)


def test_features_in_a_file_of_other_inputs_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first features agree, but the file has too few."""
    monkeypatch.setattr(features, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(features, "_WORTH_A_FILE", 0.0)
    wanted = federation_of().engine.scenario.images
    (file,) = (tmp_path / "features").glob("*.safetensors")
    assert torch.equal(safetensors.torch.load_file(file)["features"], wanted)
    for wrong in (wanted[:5], wanted + 1):
        safetensors.torch.save_file({"features": wrong.contiguous()}, file)
        assert torch.equal(federation_of().engine.scenario.images, wanted)
    shifted = wanted.clone()
    shifted[-1] = 7  # only the first ones are compared: the file is used
    safetensors.torch.save_file({"features": shifted}, file)
    assert torch.equal(federation_of().engine.scenario.images, shifted)
