"""Effective peers by hand, and the minimum below which a client receives its own tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.core.dominance import effective_peers, keep_own_below, others_share
from factorized_fl.core.mixing import Dense, Groups, Mean, Sparse, Weights, dense, own_tensors
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_federation

QUARTERS = torch.full((4,), 0.25, dtype=torch.float64)
HALF = torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0.5, 0.5, 0]], dtype=torch.float64)
HAND: list[tuple[Weights, list[float]]] = [
    (Mean(QUARTERS), [3.0, 3.0, 3.0, 3.0]),
    (own_tensors(4), [0.0, 0.0, 0.0, 0.0]),
    (Groups(torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.float64)), [2.0, 2.0, 2.0, 0.0]),
    (Sparse(torch.tensor([[0, 1]] * 4), torch.tensor([[0.9, 0.1]] * 4)), [1.0, 1.0, 1.0 / 0.82, 1.0 / 0.82]),
    (Dense(HALF), [1.0, 0.0, 0.7**2 / (0.01 + 0.04 + 0.16), 2.0]),
]


@pytest.mark.parametrize(("weights", "wanted"), HAND)
def test_the_client_itself_is_no_peer_because_it_can_subtract_its_own_tensors(
    weights: Weights, wanted: list[float]
) -> None:
    assert effective_peers(weights, range(4)).tolist() == pytest.approx(wanted)
    assert effective_peers(weights, [3, 1]).tolist() == pytest.approx([wanted[3], wanted[1]])


def test_participants_below_the_minimum_keep_their_own_tensors() -> None:
    """Client 0 receives one peer alone and client 2 about 2.3; client 3, with two peers, is no participant."""
    kept = dense(keep_own_below(Dense(HALF), [0, 1, 2], 2.2))
    assert kept.tolist() == [[1, 0, 0, 0], *HALF[1:].tolist()]
    assert torch.equal(dense(keep_own_below(Mean(QUARTERS), range(4), 3.5)), torch.eye(4, dtype=torch.float64))
    same = Mean(QUARTERS)
    assert keep_own_below(same, range(4), 3.0) is same


@given(st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=5, max_size=5), st.floats(0, 5))
def test_no_guarded_row_has_fewer_peers_than_the_minimum_and_some(table: list[list[int]], minimum: float) -> None:
    matrix = torch.tensor(table, dtype=torch.float64) + torch.eye(5, dtype=torch.float64)
    weights = Dense(matrix / matrix.sum(1, keepdim=True))
    kept = keep_own_below(weights, range(5), minimum)
    assert not kept.complaint()
    assert all(peers == 0 or peers >= minimum for peers in effective_peers(kept, range(5)).tolist())


def test_a_round_records_effective_peers_and_keeps_to_the_minimum() -> None:
    federation, guarded = tiny_federation("fedavg"), tiny_federation("fedavg", min_peers=4)
    for each in (federation, guarded):
        first, _ = run_round(each, 1)
        assert [record["effective_peers"] for record in first] == [None] * 4
    before = {name: stacked.clone() for name, stacked in guarded.clients.state.common.items()}
    downloads = guarded.server.prepare(2, range(4), lambda k, tensors: [])
    assert downloads.peers() == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    assert all(torch.equal(rows, before[name]) for name, rows in downloads.items())
    records, _ = run_round(federation, 2)
    sizes = federation.server.sizes
    others = [sizes[[j for j in range(4) if j != k]] for k in range(4)]
    wanted = [float(own.sum() ** 2 / own.square().sum()) for own in others]
    assert [record["effective_peers"] for record in records] == pytest.approx(wanted)


def test_a_client_that_reverts_has_no_peers() -> None:
    federation = tiny_federation("fedfomo", lr=1e-9)
    run_round(federation, 1)
    records, mixing = run_round(federation, 2)
    assert mixing is not None
    assert mixing.revert is not None
    reverted = mixing.revert.tolist()
    assert any(reverted)
    assert all(record["effective_peers"] == 0 for record, back in zip(records, reverted, strict=True) if back)


@pytest.mark.parametrize(
    ("weights", "wanted"), list(zip((each for each, _ in HAND), [0.75, 0, 2 / 3, 0.1, 0.5], strict=True))
)
def test_the_share_of_others_is_their_weight(weights: Weights, wanted: float) -> None:
    assert others_share(weights, [0]).tolist() == pytest.approx([wanted])
    assert others_share(weights, []).tolist() == []
