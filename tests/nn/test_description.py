import pytest
import torch
from torch import nn

from factorized_fl.core.roles import roles
from factorized_fl.nn import build_model, describe, factorize, last_body_v, set_threshold


@pytest.fixture(scope="module")
def resnet9():
    return factorize(build_model("resnet9", 10))


def count(model, kind, head):
    state = model.state_dict()
    return sum(
        state[name].numel()
        for name, role in roles(model).items()
        if role.kind == kind and role.head == head and state[name].ndim
    )


def test_counts_of_the_dense_resnet9():
    model = build_model("resnet9", 10)
    found = describe(model)
    assert count(model, "body", head=False) == 2_565_824
    assert found.norm == 2_944
    assert found.stat == 2_944
    assert model.head.weight.numel() == 2_560
    assert found.bias == 10
    assert found.head == 2_570
    assert found.total == 2_574_282
    assert (found.u, found.v, found.mu, found.mu_surviving, found.other) == (0, 0, 0, 0, 0)
    assert found.share == 1.0


def test_counts_of_the_factorised_resnet9(resnet9):
    found = describe(resnet9)
    assert (count(resnet9, "u", head=False), found.u) == (88, 344)
    assert (count(resnet9, "v", head=False), found.v) == (270_528, 270_538)
    assert (count(resnet9, "mu", head=False), found.mu) == (2_565_824, 2_568_384)
    assert resnet9.state_dict()[last_body_v(roles(resnet9))].numel() == 65_536
    assert found.u + found.v == 270_882
    assert found.u + found.v + found.mu == 2_839_266
    assert found.body == 0
    assert found.head == 256 + 10 + 2_560 + 10
    assert found.total == 2_839_266 + 2_944 + 2_944 + 10


@pytest.mark.parametrize(
    ("layout", "u", "v"), [("mixed", (3_785, 4_041), (4_672, 4_682)), ("released", (88, 344), (270_528, 270_538))]
)
def test_counts_of_the_other_layouts(layout, u, v):
    model = factorize(build_model("resnet9", 10), layout=layout)
    found = describe(model)
    assert (count(model, "u", head=False), found.u) == u
    assert (count(model, "v", head=False), found.v) == v
    assert found.mu == 2_568_384


def test_counts_without_mu():
    found = describe(factorize(build_model("resnet9", 10), mu=False))
    assert found.u + found.v == 270_882
    assert (found.mu, found.mu_surviving, found.body) == (0, 0, 0)


def test_surviving_share():
    layer = factorize(nn.Linear(4, 1))
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(torch.tensor([[0.5, -0.2, 0.1, 0.0]]))
    assert (describe(layer).mu_surviving, describe(layer).share) == (4, 1.0)
    set_threshold(layer, 0.2)
    assert (describe(layer).mu_surviving, describe(layer).share) == (2, 0.5)
    assert describe(layer).mu == 4


def test_a_mu_that_is_pruned_away_has_a_row_of_zero():
    layer = factorize(nn.Linear(4, 1, bias=False), threshold=1.0)
    assert describe(layer).share == 0.0
    assert "  surviving  0  0.0% of mu" in str(describe(layer)).splitlines()
    assert "surviving" not in str(describe(nn.Linear(4, 1)))


def test_other_kinds_scalars_and_shared_tensors():
    class Scaled(nn.Module):
        kinds = {"original": "w1"}  # noqa: RUF012

        def forward(self, weight):
            return 2 * weight

        def right_inverse(self, weight):
            return weight / 2

    class User(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.temperature = nn.Parameter(torch.ones(()))
            self.norm = nn.BatchNorm1d(3)
            self.first = nn.Linear(3, 3, bias=False)
            self.fc = nn.Linear(3, 5)
            self.fc.weight = self.embed.weight
            nn.utils.parametrize.register_parametrization(self.first, "weight", Scaled())

    found = describe(User())
    assert (found.body, found.other, found.bias, found.norm, found.stat) == (16, 9, 5, 6, 6)
    assert found.total == 42
    assert found.head == 20
    assert describe(User(), head="norm").head == 12


def test_table(resnet9):
    lines = str(describe(resnet9)).splitlines()
    assert lines == [
        "u                  344",
        "v              270,538",
        "mu           2,568,384",
        "  surviving  2,568,384  100.0% of mu",
        "bias                10",
        "norm             2,944",
        "stat             2,944",
        "total        2,845,164",
        "  of it head     2,836",
    ]
