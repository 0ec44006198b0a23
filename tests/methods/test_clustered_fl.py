from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import weigh
from factorized_fl.methods.clustered_fl import ClusteredFL, halves, separation
from factorized_fl.results.reading import read_run
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.methods.hand import server
from tests.tiny import tiny_config, tiny_federation, tiny_scenario

FIRST = 22  # the first mixing that may split: it looks at the updates of round 21
X, Y, Z = torch.eye(3)
READY = ClusteredFL(rule="norms", eps1=0.5, eps2=0.8)
TWO_CAMPS = [X, -X, X + 0.1 * Y, -X + 0.1 * Y]


def groups(clusters: torch.Tensor) -> set[frozenset[int]]:
    return {frozenset((clusters == c).nonzero().flatten().tolist()) for c in clusters.unique()}


def test_three_groups_are_found_by_two_nested_splits() -> None:
    """The second split happens among clients 0, 2, 4, 5, 6, 7: positions in the cluster are not client numbers."""
    member = "bacabccba"
    ids = {g: {k for k, m in enumerate(member) if m == g} for g in "abc"}

    def updates(a, b, c):
        way = {"a": a, "b": b, "c": c}
        return torch.stack([way[m] + 0.01 * (k % 3) * Z for k, m in enumerate(member)])

    sizes = [float(k + 1) for k in range(9)]
    first = READY.mix(server(updates(-2 * X, X + 0.3 * Y, X - 0.3 * Y), round_number=FIRST, sizes=sizes))
    assert groups(first.state["clusters"]) == {frozenset(ids["a"]), frozenset(ids["b"] | ids["c"])}
    assert first.matrix[1].tolist() == pytest.approx([1 / 3 if k in ids["a"] else 0 for k in range(9)])
    assert first.matrix[0].tolist() == pytest.approx([0 if k in ids["a"] else 1 / 6 for k in range(9)])

    second = READY.mix(server(updates(2 * Z, Y, -Y), round_number=FIRST + 1, state=first.state, sizes=sizes))
    assert groups(second.state["clusters"]) == {frozenset(ids[g]) for g in "abc"}
    for k, m in enumerate(member):
        assert second.matrix[k].tolist() == pytest.approx([1 / 3 if j in ids[m] else 0 for j in range(9)])

    third = READY.mix(server(updates(2 * Z, Y, -Y), round_number=FIRST + 2, state=second.state))
    assert torch.equal(third.state["clusters"], second.state["clusters"])
    assert groups(first.state["clusters"]) == {frozenset(ids["a"]), frozenset(ids["b"] | ids["c"])}  # not overwritten


def test_a_homogeneous_population_is_never_split() -> None:
    state: dict[str, torch.Tensor] = {}
    for round_number in range(FIRST, FIRST + 8):
        noise = 0.3 * torch.randn(6, 3)
        mixing = READY.mix(server(X + noise, round_number=round_number, state=state))
        state = mixing.state
        assert groups(state["clusters"]) == {frozenset(range(6))}
        assert torch.allclose(mixing.matrix, torch.full((6, 6), 1 / 6, dtype=torch.float64))


def test_two_camps_are_split() -> None:
    mixing = READY.mix(server(torch.stack(TWO_CAMPS), round_number=FIRST))
    assert groups(mixing.state["clusters"]) == {frozenset({0, 2}), frozenset({1, 3})}
    assert mixing.matrix.tolist() == [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]] * 2


def test_clients_can_be_weighted_by_images() -> None:
    method = ClusteredFL(rule="norms", eps1=0.5, eps2=0.8, weights="images")
    mixing = method.mix(server(torch.stack(TWO_CAMPS), round_number=FIRST, sizes=[1.0, 2.0, 3.0, 2.0]))
    assert mixing.matrix.tolist() == [[0.25, 0, 0.75, 0], [0, 0.5, 0, 0.5]] * 2


@pytest.mark.parametrize(
    ("method", "updates", "round_number"),
    [
        pytest.param(ClusteredFL(rule="norms", eps1=0.05, eps2=0.8), TWO_CAMPS, FIRST, id="the mean moves by 0.05"),
        pytest.param(
            ClusteredFL(rule="norms", eps1=0.5, eps2=1.1), TWO_CAMPS, FIRST, id="no client moves by more than 1.1"
        ),
        pytest.param(READY, TWO_CAMPS[:2], FIRST, id="two clients only"),
        pytest.param(READY, TWO_CAMPS, FIRST - 1, id="updates of round 20"),
        pytest.param(ClusteredFL(rule="norms"), TWO_CAMPS, FIRST, id="no thresholds set"),
    ],
)
def test_each_condition_alone_prevents_a_split(
    method: ClusteredFL, updates: list[torch.Tensor], round_number: int
) -> None:
    mixing = method.mix(server(torch.stack(updates), round_number=round_number))
    assert mixing.state["clusters"].unique().tolist() == [0]
    count = len(updates)
    assert torch.equal(mixing.matrix, torch.full((count, count), 1 / count, dtype=torch.float64))


def test_updates_are_counted_from_where_training_began() -> None:
    begin = torch.randn(4, 3)
    stack = {"w": begin + torch.stack(TWO_CAMPS)}
    mixing = READY.mix(server(stack, start={"w": begin}, round_number=FIRST))
    assert groups(mixing.state["clusters"]) == {frozenset({0, 2}), frozenset({1, 3})}
    assert mixing.similarity is not None
    assert mixing.similarity[0, 1] == pytest.approx(-1, abs=1e-6)


def test_largest_norms_of_any_cluster_are_kept_in_the_state() -> None:
    """Cluster 0 has mean X and longest 2, cluster 1 mean 0 and longest 3; client 4 never participated."""
    state = {"clusters": torch.tensor([0, 1, 0, 1, 1])}
    updates = torch.stack([2 * X, 3 * Y, torch.zeros(3), -3 * Y, 9 * Z])
    mixing = ClusteredFL().mix(server(updates, state=state, received=[True] * 4 + [False]))
    assert mixing.state["norms"].tolist() == [1, 3]


def test_linkage_is_complete() -> None:
    """On a line with growing gaps single linkage would cut off the last point alone.

    Complete linkage joins 0-1, then 2.1-3.3, then 4.6-6.1, then the first two pairs (3.3 < 4.0).
    """
    place = torch.tensor([0.0, 1.0, 2.1, 3.3, 4.6, 6.1])
    order = torch.tensor([4, 0, 2, 5, 1, 3])
    place = place[order]
    second = halves(-(place[:, None] - place[None]).abs())
    assert {frozenset(place[second].tolist()), frozenset(place[~second].tolist())} == {
        frozenset(torch.tensor([0.0, 1.0, 2.1, 3.3]).tolist()),
        frozenset(torch.tensor([4.6, 6.1]).tolist()),
    }


def test_clients_that_never_participated_receive_but_do_not_count() -> None:
    still = torch.zeros(3)
    received = [True, False, True, True, True]
    updates = torch.stack([TWO_CAMPS[0], still, *TWO_CAMPS[1:]])
    mixing = READY.mix(server(updates, round_number=FIRST, received=received))
    clusters = mixing.state["clusters"]
    assert groups(clusters[torch.tensor(received)]) == {frozenset({0, 2}), frozenset({1, 3})}
    assert mixing.matrix[:, 1].tolist() == [0] * 5
    assert sorted(mixing.matrix[1].tolist()) == [0, 0, 0, 0.5, 0.5]


def test_clients_that_never_participated_are_not_in_the_norm_of_the_mean() -> None:
    """The mean of the three participants has length 0.6; with three zeros more it would be 0.3, and split."""
    updates = torch.stack([1.4 * X, 1.4 * X, -X, *[torch.zeros(3)] * 3])
    mixing = READY.mix(server(updates, round_number=FIRST, received=[True] * 3 + [False] * 3))
    assert mixing.state["clusters"].tolist() == [0] * 6
    assert mixing.matrix.tolist() == [pytest.approx([1 / 3] * 3 + [0] * 3)] * 6


def test_clients_that_never_participated_do_not_make_a_cluster_large_enough() -> None:
    updates = torch.stack([X, -X, torch.zeros(3), torch.zeros(3)])
    mixing = READY.mix(server(updates, round_number=FIRST, received=[True, True, False, False]))
    assert mixing.state["clusters"].tolist() == [0] * 4


def test_clients_of_a_cluster_without_participants_keep_their_own_tensors() -> None:
    state = {"clusters": torch.tensor([0, 1, 0, 1])}
    mixing = READY.mix(server(torch.stack(TWO_CAMPS), state=state, received=[True, False, True, False]))
    assert mixing.matrix.tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]


def test_in_a_federation_each_cluster_gets_its_own_mean() -> None:
    federation = tiny_federation("clustered-fl", options={"rule": "norms", "eps1": 1e6, "warm_up": 0})
    run_round(federation, 1)
    trained = {name: federation.clients.state.common[name].clone() for name in federation.shared}
    records, mixing = run_round(federation, 2)
    assert len(records) == 4
    assert mixing is not None
    assert len(federation.server.state["clusters"].unique()) == 2
    for name, start in federation.clients.start.common.items():
        assert torch.equal(start, weigh(mixing.matrix, trained[name]))


# -- the relative rule, and whether a run split at all

RELATIVE = ClusteredFL()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_relative_rule_depends_on_no_scale(scale: float) -> None:
    """The mean of the two camps has length 0.05, the longest update 1.005."""
    mixing = RELATIVE.mix(server(scale * torch.stack(TWO_CAMPS), round_number=FIRST))
    assert groups(mixing.state["clusters"]) == {frozenset({0, 2}), frozenset({1, 3})}
    assert RELATIVE.activated(mixing.state) is True


@pytest.mark.parametrize(
    ("method", "updates", "round_number"),
    [
        pytest.param(ClusteredFL(ratio=0.04), TWO_CAMPS, FIRST, id="the mean is 0.0498 of the longest"),
        pytest.param(RELATIVE, TWO_CAMPS, FIRST - 1, id="updates of round 20"),
        pytest.param(RELATIVE, [X, X, X + 0.1 * Y, X], FIRST, id="all agree"),
        # The greatest similarity between the halves {X, Y} and {-X, -Y} is 0: sqrt(1 / 2) is not above 0.75.
        pytest.param(ClusteredFL(gamma=0.75), [X, Y, -X, -Y], FIRST, id="the halves are too near"),
    ],
)
def test_each_condition_of_the_relative_rule_alone_prevents_a_split(
    method: ClusteredFL, updates: list[torch.Tensor], round_number: int
) -> None:
    mixing = method.mix(server(torch.stack(updates), round_number=round_number))
    assert mixing.state["clusters"].unique().tolist() == [0]
    assert method.activated(mixing.state) is False


def test_separation_of_two_halves() -> None:
    similarity = torch.tensor([[1.0, 0.9, -0.28, -1.0], [0.9, 1.0, -0.5, -1.0], [-0.28, -0.5, 1, 0], [-1, -1, 0, 1]])
    second = torch.tensor([False, False, True, True])
    assert separation(similarity, second) == pytest.approx(0.8)  # sqrt((1 + 0.28) / 2)


def test_thresholds_without_effect_are_refused() -> None:
    with pytest.raises(UserError, match="add rule = 'norms'"):
        ClusteredFL(eps1=0.1)


@pytest.mark.parametrize(("ratio", "split"), [(1e-6, False), (1.0, True)])
def test_the_summary_says_whether_a_cluster_was_split(ratio: float, split: bool, tmp_path: Path) -> None:
    config = tiny_config("clustered-fl", options={"warm_up": 0, "ratio": ratio, "gamma": 0.0})
    summary = run_federation(config, tmp_path / "run", scenario=tiny_scenario(config)).summary()
    assert summary is not None
    assert summary["activated"] is split
    assert read_run(tmp_path / "run").summary["activated"] is split  # type: ignore[index]
    other = tiny_config("fedavg", rounds=1)
    without = run_federation(other, tmp_path / "other", scenario=tiny_scenario(other)).summary()
    assert without is not None
    assert "activated" not in without
