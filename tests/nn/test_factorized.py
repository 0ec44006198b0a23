import itertools
import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from factorized_fl.core.errors import UserError
from factorized_fl.nn import RankOneSparse, build_model, describe, factorize, factorized, fold, set_threshold
from factorized_fl.nn.factorized import INITS, LAYOUTS, head_mu_xavier, leading_pair, xavier

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Volume(nn.Module):
    """A user's model: a 3-d convolution, functional operations, and a layer used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(2, 4, (3, 2, 1), stride=(1, 2, 1), padding=1)
        self.again = nn.Conv3d(4, 4, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        x = F.gelu(self.first(x))
        x = self.again(F.relu(self.again(x))) * self.scale
        return self.out(x.mean((2, 3, 4)))


class Attention(nn.Module):
    """A user's model: layer normalisation, hand-made attention and a transformer layer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        y = self.norm(x)
        weights = (self.query(y) @ self.key(y).transpose(1, 2) / math.sqrt(8)).softmax(-1)
        return self.fc(self.encoder(x + weights @ self.value(y)).mean(1))


def signal():
    return nn.Sequential(
        nn.Conv1d(4, 8, 5, stride=2, padding=4, dilation=2, groups=2),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 8, 3, groups=8, padding=1, padding_mode="circular"),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


CASES = {
    "resnet9": (lambda: build_model("resnet9", 10), (2, 3, 32, 32)),
    "resnet18": (lambda: build_model("resnet18", 10, head_layers=2, head_norm=True), (2, 3, 16, 16)),
    "signal": (signal, (3, 4, 20)),
    "volume": (Volume, (2, 2, 4, 5, 3)),
    "attention": (Attention, (2, 6, 8)),
}


def part_of(layer) -> RankOneSparse:
    return layer.parametrizations.weight[0]


def original_of(layer) -> torch.Tensor:
    return layer.parametrizations.weight.original


def stir(model, scale=0.02):
    """Move every parameter and running statistic away from its start, as training would."""
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor), alpha=scale)
    return model


@pytest.mark.parametrize("case", CASES)
def test_fit_keeps_the_outputs_and_fold_gives_the_model_back(case):
    torch.manual_seed(0)
    make, shape = CASES[case]
    model, x = stir(make()).eval(), torch.randn(shape)
    before, names = model(x), list(model.state_dict())
    kind = {name: type(module) for name, module in model.named_modules()}

    assert factorize(model, init="fit") is model
    torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-5)
    assert describe(model).u > 0

    plain = fold(model)
    assert list(plain.state_dict()) == names
    assert {name: type(module) for name, module in plain.named_modules()} == kind
    assert not any(parametrize.is_parametrized(module) for module in plain.modules())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in plain.parameters())
    torch.testing.assert_close(plain(x), before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["signal", "volume", "attention"])
def test_fold_of_a_drawn_and_pruned_model_has_its_eval_outputs(case, layout):
    torch.manual_seed(0)
    make, shape = CASES[case]
    model, x = stir(factorize(make(), layout=layout, threshold=0.01)), torch.randn(shape)
    unpruned = deepcopy(model)
    set_threshold(unpruned, 0.0)
    model.eval()
    expected = model(x)
    assert not torch.allclose(unpruned.eval()(x), expected, atol=1e-4)

    torch.testing.assert_close(fold(model)(x), expected, atol=1e-5, rtol=1e-5)
    # The eval weights are folded even while the model trains.
    model.train()
    plain = fold(model)
    assert plain.training
    assert all(module.training for module in plain.modules())
    torch.testing.assert_close(plain.eval()(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["resnet9", "resnet18"])
def test_fold_of_a_drawn_paper_network(case):
    torch.manual_seed(0)
    make, shape = CASES[case]
    model, x = stir(factorize(make()), 1e-3).eval(), torch.randn(shape)
    expected = model(x)
    torch.testing.assert_close(fold(model)(x), expected, atol=1e-5, rtol=1e-5)


def test_fold_leaves_the_model_alone():
    model = stir(factorize(signal(), threshold=0.01))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(3, 4, 20)
    expected = model.eval()(x)
    plain = fold(model.train())
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    assert model.training
    assert all(part_of(layer).training for layer in (model[0], model[3], model[6]))
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.eval()(x), expected)


def test_fold_works_on_any_parametrisation_and_on_a_lone_layer():
    class Doubled(nn.Module):
        def forward(self, a, b):
            return a * (b + 1)

        def right_inverse(self, weight):
            return weight, torch.zeros_like(weight)

    layer = nn.Linear(3, 2)
    expected = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", Doubled())
    plain = fold(layer)
    assert type(plain) is nn.Linear
    assert torch.equal(plain.weight, expected)
    assert list(plain.state_dict()) == ["weight", "bias"]


def test_frozen_weights_stay_dense_and_keep_their_values():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    factorize(model)
    assert type(model[0]) is nn.Linear
    assert torch.equal(model[0].weight, before)
    assert part_of(model[1]).u.requires_grad
    plain = fold(model)
    assert not plain[0].weight.requires_grad
    assert plain[1].weight.requires_grad
    with pytest.raises(UserError, match="All layers of the model are frozen"):
        factorize(nn.Linear(3, 4).requires_grad_(False))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_entry_by_entry(layout):
    out, inp, size = 4, 3, 2
    layer = stir(factorize(nn.Conv2d(inp, out, size, bias=False).double(), layout=layout), 1.0)
    u, v, mu = part_of(layer).u.flatten(), part_of(layer).v, original_of(layer)
    weight, rest = layer.weight, mu
    for o, i, p, q in itertools.product(range(out), range(inp), range(size), range(size)):
        if layout == "taps":
            # The paper counts v by input first; ours lies in the kernel's order.
            product = u[p * size + q] * v.reshape(out, inp).T.reshape(-1)[i * out + o]
        elif layout == "mixed":
            product = u[i * size + p] * v.flatten()[o * size + q]
        else:
            flat = ((o * inp + i) * size + p) * size + q
            product = u[flat // (inp * out)] * v.flatten()[flat % (inp * out)]
        torch.testing.assert_close(weight[o, i, p, q], product + rest[o, i, p, q])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear_entry_by_entry(layout):
    layer = stir(factorize(nn.Linear(3, 2).double(), layout=layout), 1.0)
    u, v, mu = part_of(layer).u.flatten(), part_of(layer).v.flatten(), original_of(layer)
    for o, i in itertools.product(range(2), range(3)):
        torch.testing.assert_close(layer.weight[o, i], u[i] * v[o] + mu[o, i])


@pytest.mark.parametrize(
    ("layer", "layout", "u", "v"),
    [
        (nn.Linear(5, 7), "taps", (1, 5), (7, 1)),
        (nn.Linear(5, 7), "mixed", (1, 5), (7, 1)),
        (nn.Linear(5, 7), "released", (1, 5), (7, 1)),
        (nn.Conv2d(6, 4, (3, 5), groups=2), "taps", (1, 1, 3, 5), (4, 3, 1, 1)),
        (nn.Conv2d(6, 4, (3, 5), groups=2), "mixed", (1, 3, 3, 1), (4, 1, 1, 5)),
        (nn.Conv2d(6, 4, (3, 5), groups=2), "released", (15, 1), (1, 12)),
        (nn.Conv1d(6, 4, 3), "mixed", (1, 6, 3), (4, 1, 1)),
        (nn.Conv3d(6, 4, (2, 3, 5)), "mixed", (1, 6, 2, 3, 1), (4, 1, 1, 1, 5)),
        (nn.Conv3d(6, 4, (2, 3, 5)), "taps", (1, 1, 2, 3, 5), (4, 6, 1, 1, 1)),
    ],
)
def test_shapes_and_names_of_the_factors(layer, layout, u, v):
    full = factorize(deepcopy(layer), layout=layout).state_dict()
    assert full["parametrizations.weight.0.u"].shape == u
    assert full["parametrizations.weight.0.v"].shape == v
    assert full["parametrizations.weight.original"].shape == layer.weight.shape
    assert len(full) == 4

    bare = factorize(deepcopy(layer), layout=layout, mu=False).state_dict()
    assert bare["parametrizations.weight.0.u"].shape == u
    assert bare["parametrizations.weight.original"].shape == v
    assert len(bare) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mu", [True, False])
@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 4), lambda: nn.Conv2d(2, 3, 2, bias=False)])
def test_gradients_by_hand(make, mu, layout):
    torch.manual_seed(0)
    layer = factorize(make().double(), layout=layout, mu=mu)
    if mu:
        stir(layer, 1.0)
    part, original = part_of(layer), original_of(layer)
    upstream = torch.randn(layer.weight.shape, dtype=torch.float64)
    layer.weight.backward(upstream)

    v = part.v if mu else original
    matrix = torch.broadcast_shapes(part.u.shape, v.shape)
    grad = upstream.reshape(matrix)
    u_axes = [axis for axis, size in enumerate(part.u.shape) if size == 1]
    v_axes = [axis for axis, size in enumerate(v.shape) if size == 1]
    torch.testing.assert_close(part.u.grad, (grad * v.detach()).sum(u_axes, keepdim=True))
    torch.testing.assert_close(v.grad, (grad * part.u.detach()).sum(v_axes, keepdim=True))
    if mu:
        assert torch.equal(original.grad, upstream)


def test_gradients_reach_the_factors_through_a_convolution():
    torch.manual_seed(0)
    layer = stir(factorize(nn.Conv2d(4, 4, 3, padding=1, groups=2).double()), 1.0)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    layer(x).square().sum().backward()
    plain = fold(layer)
    plain(x).square().sum().backward()
    dense, part = plain.weight.grad, part_of(layer)
    torch.testing.assert_close(original_of(layer).grad, dense)
    torch.testing.assert_close(part.u.grad, (dense * part.v).sum((0, 1), keepdim=True))
    torch.testing.assert_close(part.v.grad, (dense * part.u).sum((2, 3), keepdim=True))
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad)


def test_xavier_draws():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(30, 40, 3), nn.Linear(500, 20))
    biases = [model[0].bias.clone(), model[1].bias.clone()]
    state = torch.get_rng_state()
    factorize(model, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    for layer, bias in zip(model, biases, strict=True):
        assert torch.equal(layer.bias, bias)
        assert not original_of(layer).any()
        for factor in (part_of(layer).u, part_of(layer).v):
            bound = math.sqrt(6 / (1 + factor.numel()))
            assert 0.7 * bound < factor.abs().max() <= bound
            assert factor.min() < 0 < factor.max()


@pytest.mark.parametrize("mu", [True, False])
def test_draws_follow_the_generator_in_module_order(mu):
    model = factorize(signal(), mu=mu, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    for index in (0, 3, 6):
        part, original = part_of(model[index]), original_of(model[index])
        for factor in (part.u, part.v if mu else original):
            bound = math.sqrt(6 / (1 + factor.numel()))
            assert torch.equal(factor, torch.empty(factor.shape).uniform_(-bound, bound, generator=generator))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_mu_fit_is_the_best_rank_one(layout):
    torch.manual_seed(0)
    layer = nn.Conv2d(5, 6, 3).double()
    weight = layer.weight.detach().clone()
    factorize(layer, layout=layout, mu=False, init="fit")
    if layout == "taps":
        matrix = weight.flatten(2).flatten(0, 1).T
    elif layout == "mixed":
        matrix = weight.permute(1, 2, 0, 3).reshape(15, 18)
    else:
        matrix = weight.reshape(9, 30)
    s = torch.linalg.svdvals(matrix)
    torch.testing.assert_close((layer.weight - weight).square().sum(), s[1:].square().sum())
    # Balanced: each factor carries half of the scale.
    torch.testing.assert_close(part_of(layer).u.norm(), s[0].sqrt())
    torch.testing.assert_close(original_of(layer).norm(), s[0].sqrt())


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (1, 4), (4, 1)])
def test_fit_of_a_linear_layer_from_either_side(shape):
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0]).double()
    u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    best = s[0] * u[:, :1] @ v[:1]
    factorize(layer, init="fit")
    torch.testing.assert_close((part_of(layer).u * part_of(layer).v).detach(), best)
    largest = part_of(layer).u.flatten()[part_of(layer).u.abs().argmax()]
    assert largest > 0


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_fit_of_a_zero_weight_can_still_learn(shape):
    layer = nn.Linear(shape[1], shape[0])
    nn.init.zeros_(layer.weight)
    factorize(layer, init="fit")
    assert not layer.weight.any()
    torch.testing.assert_close(part_of(layer).u.norm(), torch.tensor(1.0))
    layer.weight.sum().backward()
    assert part_of(layer).v.grad.any()


@st.composite
def convolutions(draw):
    dims = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    inp, out = (groups * draw(st.integers(1, 3)) for _ in range(2))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(dims))
    torch.manual_seed(draw(st.integers(0, 1000)))
    return CONVS[dims](inp, out, kernel, groups=groups, dilation=draw(st.integers(1, 2)))


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from(LAYOUTS))
def test_fit_and_fold_reproduce_any_kernel(layer, layout):
    weight = layer.weight.detach().clone()
    factorize(layer, layout=layout, init="fit")
    plain = fold(layer)
    torch.testing.assert_close(layer.weight.detach(), weight, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(plain.weight.detach(), weight, atol=1e-6, rtol=1e-6)
    assert (plain.groups, plain.dilation) == (layer.groups, layer.dilation)


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from(LAYOUTS))
def test_assigning_a_weight_keeps_u_and_v(layer, layout):
    factorize(layer, layout=layout)
    part = part_of(layer)
    u, v, weight = part.u.clone(), part.v.clone(), torch.randn_like(layer.weight)
    layer.weight = weight
    torch.testing.assert_close(layer.weight.detach(), weight, atol=1e-6, rtol=1e-6)
    assert torch.equal(part.u, u)
    assert torch.equal(part.v, v)


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.sampled_from(LAYOUTS))
def test_assigning_without_mu_is_least_squares(layer, layout):
    factorize(layer.double(), layout=layout, mu=False)
    u, weight = part_of(layer).u.clone(), torch.randn_like(layer.weight)
    layer.weight = weight
    assert torch.equal(part_of(layer).u, u)
    # At the optimum the error is orthogonal to every direction v can move in.
    error = (layer.weight - weight).reshape(part_of(layer).matrix_shape)
    slope = (error * u).sum_to_size(original_of(layer).shape)
    torch.testing.assert_close(slope.detach(), torch.zeros_like(slope), atol=1e-9, rtol=0)


def test_assigning_a_weight_to_zero_u_without_mu():
    layer = factorize(nn.Linear(3, 2), mu=False)
    with torch.no_grad():
        part_of(layer).u.zero_()
    layer.weight = torch.ones(2, 3)
    assert not layer.weight.any()


def test_pruning_happens_in_eval_mode_only_and_spares_the_threshold_itself():
    layer = factorize(nn.Linear(4, 1, bias=False), threshold=5e-4)
    with torch.no_grad():
        part_of(layer).v.zero_()
        original_of(layer).copy_(torch.tensor([[5e-4, -5e-4, 4.99e-4, -4e-4]]))
    whole = original_of(layer).detach().clone()
    assert torch.equal(layer.weight, whole)
    layer.eval()
    expected = torch.tensor([[5e-4, -5e-4, 0.0, 0.0]])
    assert torch.equal(layer.weight, expected)
    assert torch.equal(original_of(layer), whole)
    assert torch.equal(fold(layer).weight, expected)
    layer.train()
    assert torch.equal(layer.weight, whole)
    set_threshold(layer.eval(), 0)
    assert torch.equal(layer.weight, whole)


def test_pruning_applies_to_mu_alone():
    layer = factorize(nn.Conv2d(2, 3, 3), threshold=100.0)
    torch.testing.assert_close(layer.eval().weight, part_of(layer).u * part_of(layer).v)
    bare = factorize(nn.Conv2d(2, 3, 3), mu=False, threshold=100.0).eval()
    assert bare.weight.all()


def test_deepcopy_is_independent_and_keeps_the_threshold():
    model = stir(factorize(signal(), threshold=0.015))
    x = torch.randn(3, 4, 20)
    copy = deepcopy(model)
    assert part_of(copy[0]).threshold == 0.015
    assert torch.equal(copy.eval()(x), model.eval()(x))
    with torch.no_grad():
        part_of(copy[0]).u.add_(1.0)
    set_threshold(copy, 0.0)
    assert part_of(model[0]).threshold == 0.015
    assert not torch.equal(copy(x), model(x))
    fold(copy)
    assert parametrize.is_parametrized(copy[0], "weight")
    assert model(x).shape == (3, 3)


@pytest.mark.parametrize("mu", [True, False])
def test_state_dict_round_trip(mu):
    model, fresh = (stir(factorize(signal(), mu=mu)).eval() for _ in range(2))
    x = torch.randn(3, 4, 20)
    assert not torch.equal(fresh(x), model(x))
    fresh.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(fresh(x), model(x))


def test_moves_between_types_and_devices():
    model = stir(factorize(signal(), threshold=0.01)).eval()
    x = torch.randn(3, 4, 20)
    expected = model(x)
    double = deepcopy(model).to(torch.float64)
    assert all(t.dtype == torch.float64 for t in double.state_dict().values() if t.is_floating_point())
    result = double(x.double())
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.float(), expected, atol=1e-5, rtol=1e-5)

    meta = deepcopy(model).to("meta")
    assert meta(x.to("meta")).shape == expected.shape
    back = meta.to_empty(device="cpu")
    back.load_state_dict(model.state_dict())
    assert torch.equal(back(x), expected)


def test_a_model_built_on_meta_can_be_factorised():
    with torch.device("meta"):
        model = signal()
    factorize(model, generator=torch.Generator().manual_seed(0))
    assert all(parameter.is_meta for parameter in model.parameters())
    model = model.to_empty(device="cpu")
    model.load_state_dict(stir(factorize(signal())).state_dict())
    assert model.eval()(torch.randn(3, 4, 20)).isfinite().all()


def test_functional_call_matches_loading():
    model, other = (stir(factorize(signal(), threshold=0.01)).eval() for _ in range(2))
    x = torch.randn(3, 4, 20)
    before = model(x)
    result = torch.func.functional_call(model, dict(other.state_dict()), (x,))
    assert not torch.allclose(result, before)
    assert torch.equal(model(x), before)
    model.load_state_dict(other.state_dict())
    assert torch.equal(result, model(x))


def test_vmap_over_clients_matches_each_client():
    torch.manual_seed(0)
    clients = [stir(factorize(Volume(), threshold=0.01)).eval() for _ in range(3)]
    states = [dict(client.named_parameters()) for client in clients]
    stack = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    x = torch.randn(3, 2, 2, 4, 5, 3)
    result = torch.vmap(lambda s, b: torch.func.functional_call(clients[0], s, (b,)))(stack, x)
    for client, batch, mine in zip(clients, x, result, strict=True):
        torch.testing.assert_close(mine, client(batch), atol=1e-5, rtol=1e-5)


def test_autocast_to_bfloat16():
    torch.manual_seed(0)
    model = stir(factorize(build_model("cnn", 4), init="fit"), 1e-3)
    x = torch.randn(8, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), model(x), atol=0.1, rtol=0.1)
    result.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_skip_by_name_and_by_prefix():
    model = factorize(build_model("cnn", 4, head_layers=2), skip=("head", "conv1"))
    factorised = {name for name, m in model.named_modules() if parametrize.is_parametrized(m, "weight")}
    assert factorised == {"conv2.conv", "conv3.conv"}
    one = factorize(build_model("cnn", 4), skip="head")
    assert not parametrize.is_parametrized(one.head)
    # What was skipped can be factorised later.
    factorize(one, skip=("conv1", "conv2", "conv3"))
    assert parametrize.is_parametrized(one.head)


def test_a_prefix_ends_at_a_dot():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.fc2 = nn.Linear(2, 2)

    model = factorize(Two(), skip=("fc",))
    assert not parametrize.is_parametrized(model.fc)
    assert parametrize.is_parametrized(model.fc2)


def test_transposed_convolutions_stay_dense():
    model = factorize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 1, 3)))
    assert parametrize.is_parametrized(model[0])
    assert not parametrize.is_parametrized(model[1])


def test_a_refusal_changes_nothing():
    model = nn.Sequential(nn.Linear(2, 2), factorize(nn.Linear(2, 2)))
    with pytest.raises(UserError, match="Layer '1' is factorised already"):
        factorize(model)
    assert not parametrize.is_parametrized(model[0])


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (lambda: nn.Linear(0, 2), r"Layer '1' is empty \(its weight has shape \(2, 0\)\)"),
        (lambda: nn.Conv2d(0, 2, 3), r"Layer '1' is empty \(its weight has shape \(2, 0, 3, 3\)\)"),
        (lambda: nn.Linear(2, 2, device="meta"), "Layer '1' is on the meta device"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_that_cannot_be_fitted_leaves_the_model_as_it_was(last, message):
    model = nn.Sequential(nn.Linear(2, 2), last())
    weight = model[0].weight.detach().clone()
    with pytest.raises(UserError, match=message):
        factorize(model, init="fit")
    assert not any(parametrize.is_parametrized(layer) for layer in model)
    assert torch.equal(model[0].weight, weight)


@pytest.mark.parametrize("init", INITS)
def test_a_failure_halfway_leaves_the_model_as_it_was(init, monkeypatch):
    """Factors of the last layer cannot be computed, as when the memory is full."""
    model = signal()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = {"xavier": ("xavier", xavier), "fit": ("leading_pair", leading_pair)}
    name, compute = names[init]
    shapes = []

    def fail_at_the_end(*args):
        shapes.append(args[0])
        if len(shapes) == (6 if init == "xavier" else 3):
            raise MemoryError
        return compute(*args)

    monkeypatch.setattr(factorized, name, fail_at_the_end)
    with pytest.raises(MemoryError):
        factorize(model, init=init)
    assert not any(parametrize.is_parametrized(layer) for layer in model)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["fc", "head"])
def test_a_module_under_two_names_is_skipped_by_either(name):
    model = nn.Module()
    model.body, model.fc = nn.Linear(2, 2), nn.Linear(2, 2)
    model.head = model.fc
    factorize(model, skip=name)
    assert parametrize.is_parametrized(model.body)
    assert not parametrize.is_parametrized(model.fc)


def test_the_classifiers_mu_is_drawn_under_its_second_name():
    model = nn.Module()
    model.body, model.fc = nn.Linear(2, 2), nn.Linear(2, 2)
    model.head = model.fc
    head_mu_xavier(factorize(model))
    assert original_of(model.fc).all()
    assert not original_of(model.body).any()


def tied():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    model[1].weight = model[0].weight
    return model


def broken():
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, math.nan)
    return model


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (signal, {"layout": "tapz"}, "Unknown layout 'tapz'. Did you mean 'taps'?"),
        (signal, {"init": "fitt"}, "Unknown init 'fitt'. Did you mean 'fit'?"),
        (signal, {"skip": ("head",)}, r"skip .* names 'head'.* the layers are 0, 3, 6"),
        (signal, {"skip": ("",)}, "skip .* names ''"),
        (signal, {"skip": ("0", "3", "6")}, r"skip \(in a run: keep_dense\) leaves no layer"),
        (signal, {"threshold": -1.0}, "at least 0, not -1.0"),
        (signal, {"threshold": math.nan}, "at least 0, not nan"),
        (nn.ReLU, {}, "no Linear or convolution layer to factorise"),
        (tied, {}, "Layer '1' shares its weight"),
        (broken, {"init": "fit"}, "not finite"),
        (lambda: nn.LazyLinear(3), {}, "does not know its shape yet"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), {}, "another parametrisation"),
    ],
)
def test_mistakes_are_explained(make, options, message):
    model = make()
    with pytest.raises(UserError, match=message):
        factorize(model, **options)


def test_factorising_twice_is_refused():
    with pytest.raises(UserError, match="Layer '0' is factorised already"):
        factorize(factorize(signal()))
    assert describe(factorize(fold(factorize(signal())))).u > 0


def test_threshold_mistakes():
    with pytest.raises(UserError, match="no factorised layer"):
        set_threshold(signal(), 0.1)
    with pytest.raises(UserError, match=r"at least 0, not -0.1"):
        set_threshold(factorize(signal()), -0.1)


def test_assigning_the_wrong_shape_is_refused():
    layer = factorize(nn.Linear(3, 2))
    with pytest.raises(UserError, match=r"shape \(2, 3\); a tensor of shape \(2, 1\)"):
        layer.weight = torch.zeros(2, 1)
