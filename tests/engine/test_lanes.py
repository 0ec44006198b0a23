"""The schedule of clients over lanes."""

from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.engine.resnet9_cuda.lanes import Stay, choose_lanes, schedule


def test_a_lane_takes_the_next_client_when_one_is_finished() -> None:
    stays = schedule({7: 2, 3: 5, 4: 1, 9: 2}, lanes=2)
    assert stays == [Stay(3, 0, 0, 5), Stay(7, 1, 0, 2), Stay(9, 1, 2, 4), Stay(4, 1, 4, 5)]


def test_without_clients_there_are_no_stays() -> None:
    assert schedule({}, lanes=2) == []


@given(st.lists(st.integers(1, 30), max_size=25), st.sampled_from([1, 2, 4, 10]))
def test_every_client_stays_once_and_alone(steps: list[int], lanes: int) -> None:
    stays = schedule(dict(enumerate(steps)), lanes)
    assert sorted(stay.client for stay in stays) == list(range(len(steps)))
    taken = [(stay.lane, step) for stay in stays for step in range(stay.first, stay.end)]
    assert len(taken) == len(set(taken)) == sum(steps)
    assert all(stay.end - stay.first == steps[stay.client] for stay in stays)
    assert all(0 <= lane < lanes for lane, _ in taken)
    if steps:  # no lane waits while a client does
        assert max(stay.first for stay in stays) <= sum(steps) / lanes


def test_equal_clients_fill_many_lanes_and_unequal_ones_few() -> None:
    assert choose_lanes([45] * 20) == 10
    assert choose_lanes([45] * 3) == 2
    assert choose_lanes([45]) == 1
    assert choose_lanes([400, 200, 100, 50, 25, 12, 6, 3, 2, 1] * 2) < 10
