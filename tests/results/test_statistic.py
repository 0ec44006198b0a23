"""Variances of scores, on numbers with answers that can be worked out by hand."""

import pytest

from factorized_fl.results.statistic import pooled_deviation, share_variance, variance_around_trend


def test_variances_of_shares_seeds_and_trends() -> None:
    assert share_variance(0.5, 100) == pytest.approx(0.0025)
    assert pooled_deviation([[2.0, 6.0], [1.0, 1.0], [5.0]]) == pytest.approx(2.0)  # variances 8 and 0
    assert pooled_deviation([[1.0]]) == 0.0
    assert variance_around_trend([1.0, 2.0, 3.0, 4.0]) == 0.0
    assert variance_around_trend([0.0, 2.0, 0.0]) == pytest.approx(4 / 1.5)
    assert variance_around_trend([0.0, 2.0]) == 0.0
