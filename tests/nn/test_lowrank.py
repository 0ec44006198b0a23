import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import layers, roles
from factorized_fl.nn import build_model, fold
from factorized_fl.nn.lowrank import LowRankHadamard, low_rank, rank

RESNET9 = [(64, 3, 3, 3), (128, 64, 5, 5), *[(128, 128, 3, 3)] * 2, (256, 128, 3, 3), *[(256, 256, 3, 3)] * 3]


def half(shape: tuple[int, ...], r: int) -> int:
    """Return the numbers in one half of a weight."""
    out, inp, *kernel = shape
    return r * (out + inp) + (r * r * math.prod(kernel) if kernel else 0)


def part_of(layer: nn.Module) -> LowRankHadamard:
    return layer.parametrizations.weight[0]


def factors_of(layer: nn.Module) -> list[torch.Tensor]:
    return list(layer.parametrizations.weight.parameters())


def count(model: nn.Module, *kinds: str, head: bool | None = None) -> int:
    state = model.state_dict()
    return sum(
        state[name].numel()
        for name, role in roles(model).items()
        if role.kind in kinds and head in (None, role.head) and state[name].dim()
    )


@pytest.mark.parametrize(
    ("gamma", "numbers"),
    [(0.1, 114_275), (0.5, 483_751), (0.8, 920_238), (0.9, 1_096_740), (1.0, 1_271_716)],
)
def test_size_of_a_half_of_resnet9s_convolutions(gamma: float, numbers: int) -> None:
    assert sum(half(shape, rank(shape, gamma)) for shape in RESNET9) == numbers
    model = low_rank(build_model("resnet9", 10), gamma=gamma)
    assert count(model, "w1", head=False) == count(model, "w2", head=False) == numbers


def test_ranks_of_resnet9_at_the_stated_capacity() -> None:
    assert [rank(shape, 0.95) for shape in RESNET9] == [7, 58, 74, 74, 104, 148, 148, 148]
    model = low_rank(build_model("resnet9", 10), gamma=0.95)
    assert sum(p.numel() for p in model.parameters()) + count(model, "stat") == 2_385_262
    assert count(model, "w1", head=True) == count(model, "w2", head=True) == 1_064


def test_rank_of_a_classifier_is_between_the_square_root_and_half_the_harmonic_sum() -> None:
    assert rank((10, 256), 0.0) == 4  # ceil(sqrt(10))
    assert rank((10, 256), 1.0) == 4  # floor(2560 / 532)
    assert rank((256, 256), 0.0) == 16
    assert rank((256, 256), 1.0) == 64


@pytest.mark.parametrize("shape", RESNET9[1:])
def test_the_largest_rank_is_the_last_that_is_not_larger_than_dense(shape: tuple[int, ...]) -> None:
    r = rank(shape, 1.0)
    assert 2 * half(shape, r) <= math.prod(shape) < 2 * half(shape, r + 1)


def test_an_integral_rank_is_not_rounded_up() -> None:
    """0.1 * 12 + 0.9 * 42 is 39, but in floating point a little more."""
    assert rank((128, 256), 0.0) == 12
    assert rank((128, 256), 1.0) == 42
    assert rank((128, 256), 0.9) == 39
    for shape in RESNET9:
        assert rank(shape, 0.0) == math.ceil(math.sqrt(max(shape[:2])))
        ends = sorted((rank(shape, 0.0), rank(shape, 1.0)))
        for tenths in range(11):
            exact = -((-((10 - tenths) * rank(shape, 0.0) + tenths * rank(shape, 1.0))) // 10)
            assert rank(shape, tenths / 10) == exact
            assert ends[0] <= exact <= ends[1]


@pytest.mark.parametrize("capacity", [0.5, 0.9, 0.99])
def test_capacity_fills_that_share_of_the_dense_size(capacity: float) -> None:
    for shape in RESNET9[1:]:
        r = rank(shape, 0.1, capacity)
        assert 2 * half(shape, r - 1) < capacity * math.prod(shape) <= 2 * half(shape, r)
        assert rank(shape, 0.9, capacity) == r  # gamma is ignored
    # Ten classes: 0.9 * 2560 / 532 is 4.3; and never less than ceil(sqrt(10)).
    assert rank((10, 256), 0.0, 0.9) == 5
    assert rank((10, 256), 0.0, 0.1) == 4
    assert rank(RESNET9[0], 0.0, capacity) == 8  # a first layer is never below its least rank


def test_convolution_by_its_formula() -> None:
    """W_j[o,i,p,q] = sum_ab T_j[a,b,p,q] X_j[a,o] Y_j[b,i]; W = W1 * (W2 + 1)."""
    layer = low_rank(nn.Conv2d(3, 4, (2, 3)), gamma=0.5)
    x1, y1, t1, x2, y2, t2 = (f.detach() for f in factors_of(layer))
    weight, r = layer.weight.detach(), len(x1)
    assert r > 1
    assert [tuple(f.shape) for f in (x1, y1, t1)] == [(r, 4), (r, 3), (r, r, 2, 3)]
    for o in range(4):
        for i in range(3):
            for p in range(2):
                for q in range(3):
                    one, two = (
                        sum(float(t[a, b, p, q] * x[a, o] * y[b, i]) for a in range(r) for b in range(r))
                        for x, y, t in ((x1, y1, t1), (x2, y2, t2))
                    )
                    assert float(weight[o, i, p, q]) == pytest.approx(one * (two + 1), abs=1e-6)


def test_linear_by_its_formula() -> None:
    layer = low_rank(nn.Linear(5, 6), gamma=0.0)
    x1, y1, x2, y2 = (f.detach() for f in factors_of(layer))
    assert [tuple(f.shape) for f in (x1, y1)] == [(3, 6), (3, 5)]
    weight = layer.weight.detach()
    for o in range(6):
        for i in range(5):
            one = sum(float(x1[a, o] * y1[a, i]) for a in range(3))
            two = sum(float(x2[a, o] * y2[a, i]) for a in range(3))
            assert float(weight[o, i]) == pytest.approx(one * (two + 1), abs=1e-6)


def test_without_a_personal_half_the_weight_is_the_shared_one() -> None:
    layer = low_rank(nn.Conv2d(3, 4, 3), gamma=0.5)
    x1, y1, t1, *personal = factors_of(layer)
    with torch.no_grad():
        for factor in personal:
            factor.zero_()
    assert torch.allclose(layer.weight, torch.einsum("abpq,ao,bi->oipq", t1, x1, y1), atol=1e-6)


def test_other_dimensions() -> None:
    for kind, shape in ((nn.Conv1d, (2, 4, 9)), (nn.Conv3d, (2, 4, 5, 5, 5))):
        layer = low_rank(kind(4, 6, 3), gamma=0.5)
        assert layer.weight.shape == kind(4, 6, 3).weight.shape
        assert layer(torch.randn(shape)).shape[1] == 6


@pytest.mark.parametrize("shape", RESNET9[1:])
def test_initial_scale_is_close_to_hes(shape: tuple[int, ...]) -> None:
    """Var(W1) = 8 r / (F^2 I O), which lies near He's 2 / (F^2 I); W2 + 1 is about one."""
    out, inp, side, _ = shape
    layer = low_rank(nn.Conv2d(inp, out, side, bias=False), gamma=0.95)
    r = rank(shape, 0.95)
    part, factors = part_of(layer), factors_of(layer)
    with torch.no_grad():
        shared, personal = part._half(*factors[:3]), part._half(*factors[3:])
        whole = layer.weight
    assert shared.var().item() == pytest.approx(8 * r / (side**2 * inp * out), rel=0.1)
    assert abs(personal.mean().item()) < 0.01
    assert personal.std().item() < 0.15
    assert 0.5 < whole.var().item() / (2 / (side**2 * inp)) < 3


def test_draws_are_the_generators() -> None:
    one, same, other = (
        low_rank(nn.Conv2d(3, 4, 3), generator=torch.Generator().manual_seed(seed)).weight for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_fold_gives_a_dense_model_with_the_same_outputs() -> None:
    dense = build_model("cnn", 3, channels=1, width=0.5)
    names = list(dense.state_dict())
    model = low_rank(deepcopy(dense), gamma=0.7)
    with torch.no_grad():
        model.train()(torch.randn(8, 1, 8, 8))  # running statistics that matter
    x = torch.randn(4, 1, 8, 8)
    expected = model.eval()(x)
    assert not torch.allclose(dense.eval()(x), expected, atol=1e-3)
    plain = fold(model)
    assert list(plain.state_dict()) == names
    torch.testing.assert_close(plain(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x), expected)


def test_a_weight_cannot_be_assigned() -> None:
    layer = low_rank(nn.Linear(5, 6))
    before = layer.weight.detach().clone()
    with pytest.raises(UserError, match="cannot be assigned"):
        layer.weight = torch.zeros(6, 5)
    assert torch.equal(layer.weight, before)
    copy = deepcopy(layer)
    with pytest.raises(UserError, match="cannot be assigned"):
        copy.weight = torch.zeros(6, 5)


def test_skip_leaves_a_module_dense() -> None:
    model = low_rank(build_model("cnn", 3, width=0.5), skip=["head", "conv2"])
    kinds = {name: role.kind for name, role in roles(model).items()}
    assert kinds["head.weight"] == kinds["conv2.conv.weight"] == "body"
    assert not isinstance(getattr(model.conv2.conv, "parametrizations", None), nn.ModuleDict)
    assert len([layer for layer in layers(model).values() if hasattr(layer, "parametrizations")]) == 2


def test_roles_tell_the_halves_apart() -> None:
    model = low_rank(build_model("cnn", 3, width=0.5))
    kinds = [r.kind for n, r in roles(model).items() if n.startswith("conv1.conv.parametrizations")]
    assert kinds == ["w1"] * 3 + ["w2"] * 3
    kinds = [r.kind for n, r in roles(model).items() if n.startswith("head.parametrizations")]
    assert kinds == ["w1"] * 2 + ["w2"] * 2


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 3, 2, dtype=torch.float64), nn.Linear(3, 4, dtype=torch.float64)])
def test_gradients(layer: nn.Module) -> None:
    layer = low_rank(deepcopy(layer), gamma=0.5)
    factors = [f.detach().clone().requires_grad_() for f in factors_of(layer)]
    assert all(f.dtype == torch.float64 for f in factors)
    assert torch.autograd.gradcheck(part_of(layer), factors)
