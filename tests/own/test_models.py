"""Own networks: how they are named, made and checked; resuming; what one takes from a run."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import factorized_fl as ffl
from factorized_fl.api import export
from factorized_fl.core.stack import call_untied
from factorized_fl.nn.own import import_factory, model_name
from factorized_fl.report.command import command_of
from factorized_fl.simulate.networks import initial_model
from tests.own.nets import GroupNormCNN, byte_images, float_images, own_clients, table_net
from tests.tiny import tiny_config

QUICK: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 4, "method": "fedavg"}


def test_a_model_is_named_by_module_and_name() -> None:
    assert model_name(GroupNormCNN) == "tests.own.nets:GroupNormCNN"
    assert model_name(table_net) == "tests.own.nets:table_net"
    assert model_name(functools.partial(table_net, width=3)) == "tests.own.nets:table_net(width=3)"
    assert import_factory("tests.own.nets:table_net") is table_net


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no.such.module:Net",
            r"'no.such.module:Net' cannot be imported \(ModuleNotFoundError: No module named 'no'\)",
        ),
        ("tests.own.nets:Nothing", "cannot be imported .AttributeError"),
        ("tests.own.nets:CASES", "must be a name, a class or a function"),
        ("resnet", "model = 'resnet' must be one of resnet9, resnet18, cnn, or a factory 'package.module:name'"),
        (nn.Linear(5, 2), "model is one network, a Linear: give a class or a function"),
        (3, "model = 3 must be a name, a class or a function"),
    ],
)
def test_what_names_no_model_is_refused(name: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match=message):
        ffl.run(own_clients(), tmp_path / "run", model=name, **QUICK)


def test_a_model_by_name_equals_the_class_itself(tmp_path: Path) -> None:
    clients = own_clients()
    by_class = ffl.run(clients, tmp_path / "class", model=table_net, **QUICK)
    by_name = ffl.run(clients, tmp_path / "name", model="tests.own.nets:table_net", **QUICK)
    assert by_class.metrics() == by_name.metrics()
    assert 'model = "tests.own.nets:table_net"' in (by_class.path / "config.toml").read_text()


def raises(example: Tensor, outputs: int) -> nn.Module:
    raise ValueError("the width must be even.\nmore")


def frozen(example: Tensor, outputs: int) -> nn.Module:
    return table_net(example, outputs).requires_grad_(False)


class FailsInTraining(nn.Module):
    """Divides by zero, gives two tensors or gives scores without a gradient while it trains."""

    def __init__(self, how: str, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.how, self.body, self.head = how, nn.Linear(5, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Any:
        scores = self.head(self.body(x))
        if not self.training:
            return scores
        return {"raises": lambda: 1 / 0, "two": lambda: (scores, scores), "detached": scores.detach}[self.how]()


class OnlyHeadTrains(nn.Module):
    def __init__(self, example: Tensor, outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def by_outputs(example: Tensor, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4 * outputs), nn.ReLU(), nn.Linear(4 * outputs, outputs))


def deeper(example: Tensor, outputs: int) -> nn.Module:
    more = [nn.Linear(4, 4)] * (outputs - 2)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), *more, nn.Linear(4, outputs))


def head_first(example: Tensor, outputs: int) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.body = nn.Linear(4, outputs), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.body(x))

    return Net()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (raises, r"raises cannot be made for client 1 \(ValueError: the width must be even\): it is called with an "),
        (nn.Linear, r"Linear cannot be made for client 1 \(TypeError"),
        (lambda example, outputs: 3, "gave a int for client 1: return a torch.nn.Module"),
        (lambda example, outputs: nn.Linear(7, outputs), r"cannot compute a batch \[2, 5\] of client 1: RuntimeError"),
        (
            lambda example, outputs: nn.Linear(5, 2),
            r"gives \[2, 2\] for two inputs of client 2: return scores \[2, 3\]",
        ),
        (frozen, "table_net|frozen has nothing to train for client 1"),
        (by_outputs, r"'0.weight' of the model differs between client 1 and client 2 \(\[8, 5\] and \[12, 5\]\), but"),
        (deeper, "differs between client 1 and client 2: only one has a tensor '3.bias'"),
        (head_first, r"'out.weight' of the model differs .* but the classifier is 'body': name the classifier `head`"),
        (
            lambda example, outputs: nn.Linear(5, outputs),
            "With fedavg clients would share nothing: .* only the classifier is trained, .* or use stand-alone",
        ),
        (functools.partial(FailsInTraining, "raises"), "cannot be trained on inputs of client 1: ZeroDivisionError"),
        (
            functools.partial(FailsInTraining, "two"),
            "In training mode .* gives a tuple for two inputs of client 1",
        ),
        (
            functools.partial(FailsInTraining, "detached"),
            "cannot be trained on inputs of client 1: RuntimeError",
        ),
        (
            OnlyHeadTrains,
            "With fedavg clients would share nothing: of the model .* only the classifier is trained, which is shared "
            "only if all clients name the same classes. Let another layer be trained, or use stand-alone",
        ),
        ("cnn", r"The network cnn takes images, not inputs \[5\]: give model="),
        (None, r"The network resnet9 takes images"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused_in_one_sentence(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match=message) as caught:
        ffl.run(own_clients(), tmp_path / "run", model=model, **QUICK)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["stand-alone", "fedproto"])
def test_the_classifier_alone_can_be_trained(method: str, tmp_path: Path) -> None:
    shared = method == "fedproto"  # it shares means of the outputs of the frozen body
    clients = own_clients(outputs=(3, 3, 3) if shared else (2, 3, 2), named=shared)
    run = ffl.run(clients, tmp_path, model=OnlyHeadTrains, **{**QUICK, "method": method})
    assert [record["up_bytes"] > 0 for record in run.metrics()[-3:]] == [shared] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "dirichlet"}, "partition has no effect on clients with data of their own"),
        ({"clients": 3}, "clients has no effect"),
        ({"augment": "paper"}, r"augment = 'paper' needs uint8 images"),
        ({"width": 2.0}, "width has no effect on a network of your own"),
        ({"data": "folder"}, "Clients bring their own data"),
        ({"round": 3}, "Unknown option of a run with fedavg 'round'. Did you mean 'rounds'"),
        ({"learning_rate": 0.1}, "There is no option 'learning_rate': write lr="),
        ({"method": ffl.Method}, "method = Method is a class: register it"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match=message):
        ffl.run(own_clients(), tmp_path / "run", model=table_net, **{**QUICK, **settings})


def test_other_data_or_another_model_are_refused(tmp_path: Path) -> None:
    def again(clients: Any, model: Any) -> None:
        ffl.run(clients, tmp_path / "run", model=model, resume=True, **QUICK)

    def net(example: Tensor, outputs: int) -> nn.Module:
        return table_net(example, outputs)

    first = net
    run = ffl.run(own_clients(), tmp_path / "run", model=first, **QUICK)
    again(own_clients(), first)
    with pytest.raises(ffl.UserError, match=r"started with another configuration \(model was"):
        again(own_clients(), table_net)
    other = own_clients()
    other[1].x[0, 0] += 1
    with pytest.raises(ffl.UserError, match=r"other data \(of client 2, the images are different\)"):
        again(other, first)
    (run.path / "summary.json").unlink()

    def net(example: Tensor, outputs: int) -> nn.Module:  # type: ignore[no-redef]  # edited, as in a notebook
        return nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, outputs))

    with pytest.raises(ffl.UserError, match="of client 1, the model is different"):
        again(own_clients(), net)
    with pytest.raises(ffl.UserError, match="images are different"):
        again(other, first)
    again(own_clients(), first)


def test_the_body_is_common_although_the_head_draws_first(tmp_path: Path) -> None:
    def named(example: Tensor, outputs: int) -> nn.Module:
        net = head_first(example, outputs)
        net.head = net.out
        return net

    for method in ("stand-alone", "factorized-fl-beta"):
        run = ffl.run(own_clients(), tmp_path / method, model=named, **{**QUICK, "method": method, "lr": 1e-30})
        weights = [run.model(client).body.weight for client in (1, 2, 3)]
        assert torch.equal(weights[0], weights[1])
        assert torch.equal(weights[0], weights[2])


def test_a_model_is_a_plain_module_of_the_callers_class(tmp_path: Path) -> None:
    settings = {**QUICK, "method": "factorized-peers"}
    run = ffl.run(own_clients(float_images), tmp_path / "run", model=GroupNormCNN, **settings)
    model = run.model(2)
    assert type(model) is GroupNormCNN
    expected = GroupNormCNN(torch.zeros(1, 2, 8, 12), 3).state_dict()
    assert {name: t.shape for name, t in model.state_dict().items()} == {n: t.shape for n, t in expected.items()}
    assert not model.training
    for wrong in (0, 4, True, "1"):
        with pytest.raises(ffl.UserError, match="clients are numbered from 1 to 3"):
            run.model(wrong)  # type: ignore[arg-type]


def test_images_are_scaled_for_the_model(tmp_path: Path) -> None:
    run = ffl.run(own_clients(byte_images), tmp_path / "run", model=GroupNormCNN, **QUICK)
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 8, 8)
    assert torch.equal(run.inputs(images)[:, 0, 0, 0], torch.tensor([-2.0, 2.0]))
    assert run.config().augment == "paper"


def test_a_built_in_network_takes_own_images_and_a_preset_an_own_network(tmp_path: Path) -> None:
    run = ffl.run(own_clients(byte_images), tmp_path / "one", model="cnn", **QUICK)
    assert run.model(1)(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    settings = {**QUICK, "clients": 3, "images_per_client": 8}
    run = ffl.run("demo", tmp_path / "two", model=GroupNormCNN, **settings)
    assert type(run.model(3)) is GroupNormCNN


def test_the_page_is_written_and_export_ends_in_a_sentence(tmp_path: Path) -> None:
    run = ffl.run(own_clients(), tmp_path / "run", model=table_net, **QUICK)
    assert "tests.own.nets:table_net" in ffl.report(run.path, tmp_path / "page.html").read_text()
    with pytest.raises(
        ffl.UserError, match=r"has data from Python: .* ffl.export\(ffl.run\(..., resume=True\), client=1"
    ):
        export(run.path, 1)
    with pytest.raises(ffl.UserError, match="This run has data from Python"):
        ffl.run(run.path / "config.toml", tmp_path / "other")
    assert command_of(run.config_table()) is None


def test_statistics_of_inputs_need_a_first_layer_that_is_called_first(tmp_path: Path) -> None:
    class Patches(nn.Module):
        def __init__(self, example: Tensor, outputs: int) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(1, 4), nn.Linear(4, outputs)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x.reshape(-1, 1)).view(len(x), 5, 4).mean(1))

    with pytest.raises(ffl.UserError, match="first layer 'body' does not see the inputs one by one"):
        ffl.run(own_clients(), tmp_path / "run", model=Patches, **{**QUICK, "method": "factorized-peers"})


def test_a_module_registered_twice_is_called_with_the_given_tensors_and_keeps_its_own() -> None:
    model = nn.Module()
    model.one = model.two = nn.Linear(2, 1, bias=False)
    model.forward = lambda x: model.one(x) + model.two(x)
    own, given = model.one.weight, torch.tensor([[1.0, 2.0]])
    assert call_untied(model, {"one.weight": given}, torch.ones(1, 2)).item() == 6
    assert model.one.weight is own


def test_the_configuration_accepts_a_factory_by_name() -> None:
    assert tiny_config(model="package.module:Net").has_own_model
    assert not tiny_config().has_own_model
    for wrong in ("vgg", ":Net", "package:"):
        with pytest.raises(ffl.UserError, match=f"model = '{wrong}' must be one of"):
            tiny_config(model=wrong)


def test_a_single_client_trains_alone(tmp_path: Path) -> None:
    run = ffl.run(own_clients()[:1], tmp_path / "run", model=table_net, **QUICK)
    assert run.model(1)(torch.zeros(1, 5)).shape == (1, 2)


def test_a_verdict_needs_a_comparable_stand_alone_run(tmp_path: Path) -> None:
    def run_of(name: str, clients: Any = None, **settings: Any) -> Any:
        return ffl.run(clients or own_clients(), tmp_path / name, model=table_net, **{**QUICK, **settings})

    run, alone = run_of("run"), run_of("alone", method="stand-alone")
    assert [verdict.client for verdict in run.verdict(alone).clients] == [1, 2, 3]
    assert run.verdict(run_of("control", control=True)).over == "its control"
    with pytest.raises(ffl.UserError, match="give a control, or a run of Stand-Alone"):
        run.verdict(run)
    with pytest.raises(ffl.UserError, match=r"was trained differently \(lr"):
        run.verdict(run_of("slow", method="stand-alone", lr=1e-5))
    with pytest.raises(ffl.UserError, match="cannot be the reference"):
        run.verdict(run_of("other", own_clients()[:2], method="stand-alone"))
    (alone.path / "summary.json").unlink()
    with pytest.raises(ffl.UserError, match="is not complete"):
        run.verdict(alone)


def test_organisations_make_a_network_without_any_of_their_images() -> None:
    config = tiny_config(model="tests.own.nets:GroupNormCNN")
    few, many = (initial_model(config, classes, 3, labels_agree=False).state_dict() for classes in (2, 9))
    assert all(few[name].equal(many[name]) for name in few if not name.startswith("head."))
    assert many["head.bias"].shape == (9,)


class Viewing(GroupNormCNN):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.features(x).view(-1, 16)).relu())


@pytest.mark.parametrize("images", [byte_images, float_images])
def test_a_network_that_needs_contiguous_activations_trains_as_others_do(images: Any, tmp_path: Path) -> None:
    """Other networks get images with channels last, which is faster; the results differ by rounding."""
    clients = own_clients(images)
    runs = [ffl.run(clients, tmp_path / net.__name__, model=net, **QUICK) for net in (GroupNormCNN, Viewing)]
    losses = [[record["train_loss"] for record in run.metrics()] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_clients_with_own_data_are_not_a_preset() -> None:
    with pytest.raises(ffl.UserError, match=r"clients with own data are trained by ffl\.run"):
        ffl.compare(own_clients(), ["fedavg"], [1])  # type: ignore[arg-type]


def test_a_run_to_export_may_be_text(tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match="holds no checkpoint of a run"):
        ffl.export(str(tmp_path), 1)
