import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import canonical_names, layers, layers_under, roles, trainable
from factorized_fl.nn import Role, build_model, factorize, fold, last_body_v


def test_roles_of_a_factorised_network():
    model = factorize(build_model("cnn", 4, head_layers=2, head_norm=True))
    found = roles(model)
    assert list(found) == list(model.state_dict())
    assert {name: role for name, role in found.items() if name.startswith("conv3")} == {
        "conv3.conv.parametrizations.weight.original": Role("mu", False),
        "conv3.conv.parametrizations.weight.0.u": Role("u", False),
        "conv3.conv.parametrizations.weight.0.v": Role("v", False),
        "conv3.norm.weight": Role("norm", False),
        "conv3.norm.bias": Role("norm", False),
        "conv3.norm.running_mean": Role("stat", False),
        "conv3.norm.running_var": Role("stat", False),
        "conv3.norm.num_batches_tracked": Role("stat", False),
    }
    assert {name: role for name, role in found.items() if name.startswith("head.0")} == {
        "head.0.bias": Role("bias", True),
        "head.0.parametrizations.weight.original": Role("mu", True),
        "head.0.parametrizations.weight.0.u": Role("u", True),
        "head.0.parametrizations.weight.0.v": Role("v", True),
    }
    assert found["head.1.weight"] == Role("norm", True)
    assert found["head.1.running_var"] == Role("stat", True)
    assert all(role.head == name.startswith("head.") for name, role in found.items())


def test_without_mu_the_original_is_v():
    found = roles(factorize(build_model("cnn", 4), mu=False))
    assert found["conv1.conv.parametrizations.weight.original"] == Role("v", False)
    assert found["conv1.conv.parametrizations.weight.0.u"] == Role("u", False)
    assert last_body_v(found) == "conv3.conv.parametrizations.weight.original"


def test_kinds_of_a_dense_model():
    class User(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(3, 4)
            self.norms = nn.ModuleList(
                [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.RMSNorm(4)]
            )
            self.attention = nn.MultiheadAttention(4, 2)
            self.token = nn.Parameter(torch.zeros(1))
            self.register_buffer("clock", torch.zeros(3))
            self.last = nn.Linear(4, 2)

    found = roles(User())
    kinds = {name: role.kind for name, role in found.items()}
    assert kinds == {
        "token": "body",
        "clock": "stat",
        "embed.weight": "body",
        "norms.0.weight": "norm",
        "norms.0.bias": "norm",
        "norms.1.weight": "norm",
        "norms.1.bias": "norm",
        "norms.2.weight": "norm",
        "norms.2.bias": "norm",
        "norms.3.weight": "norm",
        "attention.in_proj_weight": "body",
        "attention.in_proj_bias": "bias",
        "attention.out_proj.weight": "body",
        "attention.out_proj.bias": "bias",
        "last.weight": "body",
        "last.bias": "bias",
    }
    assert {name for name, role in found.items() if role.head} == {"last.weight", "last.bias"}


def test_another_parametrisation_brings_its_own_kinds():
    class Hadamard(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = nn.Parameter(torch.zeros(1))

        @property
        def kinds(self):
            return {"original0": "w1", "original1": "w2", "extra": "w2"}

        def forward(self, a, b):
            return a * (b + 1) + self.extra

        def right_inverse(self, weight):
            return weight, torch.zeros_like(weight)

    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    parametrize.register_parametrization(model[0], "weight", Hadamard())
    kinds = {name: role.kind for name, role in roles(model).items()}
    assert kinds["0.parametrizations.weight.original0"] == "w1"
    assert kinds["0.parametrizations.weight.original1"] == "w2"
    assert kinds["0.parametrizations.weight.0.extra"] == "w2"


def test_a_foreign_parametrisation_is_body():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    kinds = {name: role.kind for name, role in roles(model).items()}
    assert kinds["parametrizations.weight.original0"] == "body"
    assert kinds["bias"] == "bias"


def test_head_may_be_named_and_a_prefix_ends_at_a_dot():
    model = nn.ModuleDict({"fc": nn.Linear(2, 2), "fc2": nn.Linear(2, 2), "fc3": nn.Linear(2, 2)})
    heads = {name for name, role in roles(model, "fc").items() if role.head}
    assert heads == {"fc.weight", "fc.bias"}
    default = {name for name, role in roles(model).items() if role.head}
    assert default == {"fc3.weight", "fc3.bias"}


def test_a_tensor_shared_with_the_head_is_the_heads():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    model[1].weight = model[0].weight
    assert roles(model)["0.weight"].head


def test_a_module_under_two_names_has_one_role():
    model = nn.Module()
    model.fc = model.head = factorize(nn.Linear(2, 2))
    found = roles(model)
    assert found["fc.parametrizations.weight.0.u"] == Role("u", True)
    assert found["head.parametrizations.weight.0.u"] == Role("u", True)
    assert len(found) == 8


def test_tied_tensors_have_one_canonical_name():
    model = nn.Module()
    model.embed = nn.Embedding(5, 3)
    model.body = model.again = nn.Linear(3, 3)
    model.head = nn.Linear(3, 5)
    model.head.weight = model.embed.weight
    names = canonical_names(model)
    assert list(names) == list(model.state_dict()) == list(roles(model))
    assert {name: first for name, first in names.items() if name != first} == {
        "again.weight": "body.weight",
        "again.bias": "body.bias",
        "head.weight": "embed.weight",
    }
    assert sorted(set(names.values())) == sorted(name for name, _ in model.named_parameters())


def test_canonical_names_of_a_network_are_its_own():
    model = factorize(build_model("cnn", 4))
    assert canonical_names(model) == {name: name for name in model.state_dict()}


def test_frozen_parameters_have_roles_and_are_not_trainable():
    model = factorize(build_model("cnn", 4))
    assert trainable(model) == [name for name, _ in model.named_parameters()]
    model.conv1.requires_grad_(False)
    kept = trainable(model)
    assert kept == [name for name, _ in model.named_parameters() if not name.startswith("conv1.")]
    assert roles(model)["conv1.conv.parametrizations.weight.original"] == Role("mu", False)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert trainable(tied) == ["0.weight", "0.bias", "1.bias"]


def test_layers_are_found_by_each_of_their_names():
    model = nn.Module()
    model.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model.fc = model.head = nn.Linear(2, 2)
    assert list(layers(model)) == ["body.0", "fc"]
    assert layers_under(model, "head") == layers_under(model, "fc") == ["fc"]
    assert layers_under(model, "body") == ["body.0"]
    assert layers_under(model, "hea") == []
    assert layers_under(model, "") == ["body.0", "fc"]


def test_a_lone_layer_is_all_head():
    assert roles(nn.Linear(2, 2)) == {"weight": Role("body", True), "bias": Role("bias", True)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet9", "conv8.conv.parametrizations.weight.0.v"),
        ("resnet18", "stage4.1.conv2.conv.parametrizations.weight.0.v"),
        ("cnn", "conv3.conv.parametrizations.weight.0.v"),
    ],
)
@pytest.mark.parametrize("head_layers", [1, 2])
def test_matching_vector(name, expected, head_layers):
    model = factorize(build_model(name, 4, width=0.125, head_layers=head_layers))
    assert last_body_v(roles(model)) == expected


def test_mistakes_are_explained():
    model = build_model("cnn", 4)
    with pytest.raises(UserError, match=r"Unknown head 'hed'\. Did you mean 'head'\?"):
        roles(model, "hed")
    with pytest.raises(UserError, match=r"Unknown head 'conv1.relu'"):
        roles(model, "conv1.relu")
    with pytest.raises(UserError, match=r"No classifier is found, .*: call the module that gives the scores `head`"):
        roles(nn.Sequential(nn.BatchNorm1d(3)))
    with pytest.raises(UserError, match="no factorised layer before its head"):
        last_body_v(roles(model))
    only_head = factorize(model, skip=("conv1", "conv2", "conv3"))
    with pytest.raises(UserError, match="no factorised layer before its head"):
        last_body_v(roles(only_head))


def test_roles_after_folding_are_those_of_the_dense_model():
    model = build_model("cnn", 4)
    assert roles(fold(factorize(model))) == roles(build_model("cnn", 4))
