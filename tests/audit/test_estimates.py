"""Areas and shares against values computed by hand, and against counting all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.audit.estimates import area, area_variance, found_at, mean_area, share

numbers = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=12).map(np.array)


def test_area_by_hand():
    # Of the four pairs (2, 1), (2, 3), (4, 1), (4, 3) three are in the right order.
    assert area(np.array([2.0, 4.0]), np.array([1.0, 3.0])) == 0.75


@given(numbers, numbers)
def test_area_counts_pairs_and_half_of_the_equal_ones(members, others):
    pairs = [(a > b) + 0.5 * (a == b) for a in members for b in others]
    assert area(members, others) == pytest.approx(np.mean(pairs))


@given(numbers, numbers)
def test_exchanging_the_sides_mirrors_the_area_and_keeps_its_variance(members, others):
    assert area(members, others) == pytest.approx(1 - area(others, members))
    assert area_variance(members, others) == pytest.approx(area_variance(others, members))


def test_variance_of_an_area_by_hand():
    # Placements of the members: 1/2 and 1, with variance 1/8; of the others: 1 and 1/2, the same. 1/16 + 1/16.
    assert area_variance(np.array([2.0, 4.0]), np.array([1.0, 3.0])) == pytest.approx(1 / 8)


def test_mean_area_is_the_mean_over_clients():
    found = mean_area(
        {0: (np.array([2.0, 4.0]), np.array([1.0, 3.0])), 1: (np.array([1.0, 1.0]), np.array([1.0, 1.0]))}
    )
    assert found.value == pytest.approx((0.75 + 0.5) / 2)
    margin = 1.959964 * np.sqrt(1 / 8) / 2
    assert (found.low, found.high) == (pytest.approx(0.625 - margin, abs=1e-5), pytest.approx(0.625 + margin, abs=1e-5))
    assert found.count == 8


def test_share_has_the_interval_of_wilson():
    found = share(8, 10, 0.1)  # by the formula: (0.8 + 0.19207 +- 1.96 sqrt(0.016 + 0.0096)) / 1.38415
    assert (found.value, found.low, found.high) == (
        0.8,
        pytest.approx(0.4902, abs=1e-3),
        pytest.approx(0.9433, abs=1e-3),
    )
    assert found.above_chance
    assert not share(1, 10, 0.1).above_chance
    assert share(0, 0, 0.25).value == 0.25


def test_members_found_at_a_share_of_false_ones():
    others = np.arange(100.0)
    found = found_at({0: (np.array([50.0, 98.5, 99.5, 200.0]), others)}, 0.05)
    assert found.value == 0.75  # of four members three exceed the threshold of 95
