"""Who trains in which lane of which graph, and when."""

from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.engine.cuda.lanes import Stay, choose_lanes, plan


def test_a_lane_takes_the_next_client_when_one_is_finished() -> None:
    (stays,) = plan({7: 2, 3: 5, 4: 1, 9: 2}, graphs=1, lanes=2)
    assert stays == [Stay(3, 0, 0, 5), Stay(7, 1, 0, 2), Stay(9, 1, 2, 4), Stay(4, 1, 4, 5)]


def test_two_graphs_share_the_longest_clients() -> None:
    first, second = plan({0: 4, 1: 3, 2: 2, 3: 1}, graphs=2, lanes=1)
    assert first == [Stay(0, 0, 0, 4), Stay(3, 0, 4, 5)]
    assert second == [Stay(1, 0, 0, 3), Stay(2, 0, 3, 5)]


def test_a_graph_without_clients_is_left_out() -> None:
    assert plan({5: 2}, graphs=2, lanes=2) == [[Stay(5, 0, 0, 2)]]
    assert plan({}, graphs=2, lanes=2) == []


@given(st.lists(st.integers(1, 30), max_size=25), st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 5), (3, 2)]))
def test_every_client_stays_once_and_alone(steps: list[int], shape: tuple[int, int]) -> None:
    graphs, lanes = shape
    plans = plan(dict(enumerate(steps)), graphs, lanes)
    assert sorted(stay.client for stays in plans for stay in stays) == list(range(len(steps)))
    taken = [
        (graph, stay.lane, step)
        for graph, stays in enumerate(plans)
        for stay in stays
        for step in range(stay.first, stay.end)
    ]
    assert len(taken) == len(set(taken)) == sum(steps)
    assert all(stay.end - stay.first == steps[stay.client] for stays in plans for stay in stays)
    assert all(0 <= lane < lanes for _, lane, _ in taken)
    if steps:  # no lane waits while a client does
        latest = max(stay.first for stays in plans for stay in stays)
        assert latest <= sum(steps) / (graphs * lanes)


def test_equal_clients_fill_many_lanes_and_unequal_ones_few() -> None:
    assert choose_lanes([45] * 20) == (1, 10)
    assert choose_lanes([45] * 3) == (1, 2)
    assert choose_lanes([45]) == (1, 1)
    graphs, lanes = choose_lanes([400, 200, 100, 50, 25, 12, 6, 3, 2, 1] * 2)
    assert graphs * lanes < 10
