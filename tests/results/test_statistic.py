"""The statistic that compares runs, on numbers whose answers can be worked out by hand."""

import pytest

from factorized_fl.results.statistic import (
    Difference,
    PairedSample,
    paired_difference,
    pooled_deviation,
    share_variance,
    standard_error,
    variance_around_trend,
)


@pytest.mark.parametrize(
    ("value", "threshold", "side"),
    [
        (2.1, 0.0, "above"),
        (2.0, 0.0, "undecided"),
        (-2.1, 0.0, "below"),
        (2.1, 1.0, "undecided"),
        (-3.5, -1.0, "below"),
    ],
)
def test_a_difference_is_decided_beyond_two_standard_errors_of_a_threshold(
    value: float, threshold: float, side: str
) -> None:
    assert Difference(value, 1.0).decide(threshold) == side


def test_errors_of_means_shares_and_trends() -> None:
    assert standard_error([2, 1, 3, 1, 3]) == pytest.approx(1 / 5**0.5)
    assert standard_error([7.0]) == 0.0
    assert share_variance(0.5, 100) == pytest.approx(0.0025)
    assert pooled_deviation([[2.0, 6.0], [1.0, 1.0], [5.0]]) == pytest.approx(2.0)  # variances 8 and 0
    assert pooled_deviation([[1.0]]) == 0.0
    assert variance_around_trend([1.0, 2.0, 3.0, 4.0]) == 0.0
    assert variance_around_trend([0.0, 2.0, 0.0]) == pytest.approx(4 / 1.5)
    assert variance_around_trend([0.0, 2.0]) == 0.0


def test_the_largest_of_clients_groups_and_seeds_is_the_error() -> None:
    clients = PairedSample([2, 1, 3, 1, 3])
    assert paired_difference([clients]) == Difference(2.0, pytest.approx(1 / 5**0.5))
    twice = PairedSample([2, 2, 1, 1, 3, 3, 1, 1, 3, 3], groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert paired_difference([twice]) == Difference(2.0, pytest.approx(1 / 5**0.5))  # as of five, not of ten
    seeds = [PairedSample([1.0] * 5), PairedSample([5.0] * 5)]
    assert paired_difference(seeds) == Difference(3.0, pytest.approx(2.0))
    assert paired_difference([]) is None


def test_known_variation_between_seeds_counts_and_that_of_rounds_is_added_in_quadrature() -> None:
    same = PairedSample([4.0] * 5)
    assert paired_difference([same, same], between_seeds=3.0) == Difference(4.0, pytest.approx(3 / 2**0.5))
    lively = PairedSample([4.0] * 5, last_rounds=[2.0, 6.0])  # variance 8
    assert paired_difference([lively], between_seeds=1.0) == Difference(4.0, pytest.approx(3.0))


def test_a_known_variance_takes_the_place_of_seeds_and_rounds() -> None:
    alone = PairedSample([4.0], last_rounds=[0.0, 100.0], variance=9.0)
    assert paired_difference([alone], between_seeds=50.0) == Difference(4.0, 3.0)
