"""Robust aggregation by hand on five clients, one of which lies."""

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import Dense, Groups, Mean
from factorized_fl.core.robust import clip_mixing, clip_rows, distances, influences, robust_rows
from factorized_fl.core.views import Mixing
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, tiny_federation

FIFTH = Mean(torch.full((5,), 0.2, dtype=torch.float64))
VALUES = torch.tensor([0.0, 1.0, 2.0, 3.0, 1000.0], dtype=torch.float64)
STACK = {"w": VALUES[:, None]}


def test_clipping_by_hand() -> None:
    """Client 1 is 1, 2, 3 and 1000 away from the others: the lower median is 2, so 3 and 1000 are cut to 2."""
    apart = distances(STACK)
    assert apart[0].tolist() == [0, 1, 2, 3, 1000]
    weights = clip_rows(FIFTH, apart, range(5))
    assert not weights.complaint()
    row = weights.matrix[0]
    assert row.tolist() == pytest.approx([1 - 0.2 - 0.2 - 0.4 / 3 - 0.0004, 0.2, 0.2, 0.4 / 3, 0.0004])
    assert float(weights.apply(VALUES, [0])[0]) == pytest.approx(0.2 * (1 + 2 + 2 + 2))
    assert clip_rows(FIFTH, apart, [1]).matrix[0].tolist() == [0.2] * 5  # client 1 is no participant


def test_a_client_moves_a_receiver_at_most_as_far_as_the_median_client() -> None:
    generator = torch.Generator().manual_seed(1)
    for size in (1.0, 1e3, 1e9, float("inf"), float("nan")):
        stack = {"w": torch.randn(5, 20, generator=generator, dtype=torch.float64)}
        stack["w"][4] = size
        mixing = clip_mixing(Mixing(FIFTH), stack, range(5))
        apart = distances(stack)
        for k, row in enumerate(mixing.weights.apply(stack["w"], range(4))):
            limit = apart[k][[j for j in range(5) if j != k]].quantile(0.5, interpolation="lower")
            assert float((row - stack["w"][k]).norm()) <= 0.2 * 4 * float(limit) + 1e-9
        assert mixing.influence is not None
        assert float(mixing.influence[:4, 4].max()) < 0.5


def test_influences_are_shares_of_how_far_a_receiver_is_moved() -> None:
    shares = influences(torch.full((5, 5), 0.2, dtype=torch.float64), distances(STACK))
    assert shares[0].tolist() == pytest.approx([0, 1 / 1006, 2 / 1006, 3 / 1006, 1000 / 1006])
    assert influences(torch.eye(5, dtype=torch.float64), distances(STACK)).sum() == 0


def test_median_and_trimmed_mean_by_hand() -> None:
    assert robust_rows("median", FIFTH, VALUES, [0, 3]).tolist() == [2.0, 2.0]
    assert robust_rows("trim", FIFTH, VALUES, [0]).tolist() == [2.0]
    groups = Groups(torch.tensor([0, 0, 1, 1, 1]), torch.ones(5, dtype=torch.float64))
    assert robust_rows("median", groups, VALUES, [0, 2]).tolist() == [0.5, 3.0]
    assert robust_rows("trim", groups, VALUES, [0, 2]).tolist() == [0.5, 3.0]
    bad = VALUES.clone()
    bad[4] = torch.nan
    assert robust_rows("median", FIFTH, bad, [0]).tolist() == [2.0]
    own = Dense(torch.tensor([[0.99, 0.01, 0, 0, 0]] * 5, dtype=torch.float64))
    assert robust_rows("median", own, VALUES, [0]).tolist() == [0.0]  # a hundredth does not count


@pytest.mark.parametrize("robust", ["clip", "median", "trim"])
def test_a_round_survives_a_client_that_lies(robust: str) -> None:
    federation = tiny_federation("fedavg", robust=robust)
    run_round(federation, 1)
    name = next(name for name in federation.clients.state.common if name in federation.shared)
    federation.clients.state.common[name][3] = 1e6
    downloads = federation.server.prepare(2, range(4), lambda k, tensors: [])
    rows = dict(downloads.items())[name]
    assert float(rows[:3].abs().max()) < 10


def test_influence_is_on_disk_and_encryption_excludes_robustness(images, tmp_path) -> None:
    directory = run_federation(tiny_config("fedavg", robust="clip", rounds=2), tmp_path / "run", data=images)
    found = RunDirectory(directory.path).mixing(2)["influence"]
    assert found.shape == (4, 4)
    assert found.sum(1).tolist() == pytest.approx([1.0] * 4)
    with pytest.raises(UserError, match="robust = 'clip' reads tensors that encryption hides"):
        tiny_config("fedavg", robust="clip", protect="encrypt")
