"""The paired statistic, on numbers that can be worked out by hand, and on simulated comparisons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.results.statistic import (
    Estimate,
    Paired,
    PairedTest,
    compare_paired,
    holm,
    paired_from_counts,
    paired_from_errors,
)


def a_test(client: int, seed: int, better: int, worse: int, size: int = 100, start: int | None = None) -> PairedTest:
    gain = np.array([1] * better + [-1] * worse + [0] * (size - better - worse), dtype=np.int8)
    start = 1000 * (10 * seed + client) if start is None else start
    return PairedTest(client, seed, gain, np.arange(start, start + size))


def compared(*tests: PairedTest, **known: float) -> Paired:
    found = compare_paired(tests) if not known else compare_paired(tests, **known)
    assert found is not None
    return found


def test_one_seed_has_the_error_of_the_discordant_images_and_names_no_client() -> None:
    found = compared(a_test(0, 1, 40, 0), a_test(1, 1, 0, 15))
    assert found.clients[0].value == pytest.approx(0.4)
    assert found.clients[0].error == pytest.approx((40 + 1) ** 0.5 / 100)
    assert found.clients[1].error == pytest.approx((15 + 1) ** 0.5 / 100)
    assert found.mean.error == pytest.approx((40 + 15 + 2) ** 0.5 / 200)
    assert found.clients[0].p < 1e-6
    assert (found.seeds, set(found.words.values())) == (1, {"undecided"})


def test_two_clients_with_the_same_test_images_are_one_measurement() -> None:
    apart = compared(a_test(0, 1, 10, 5), a_test(1, 1, 10, 5))
    together = compared(a_test(0, 1, 10, 5, start=0), a_test(1, 1, 10, 5, start=0))
    assert apart.mean.error == pytest.approx((30 + 2) ** 0.5 / 200)
    assert together.mean.error == pytest.approx((4 * 15 + 2) ** 0.5 / 200)  # every image counts twice, squared
    assert together.clients == apart.clients


def test_seeds_that_agree_leave_the_error_of_the_images() -> None:
    found = compared(*(a_test(0, seed, 10, 5) for seed in (1, 2, 3)))
    assert found.clients[0].error == pytest.approx((3 * 16) ** 0.5 / 300)
    again = compared(*(a_test(0, seed, 10, 5, start=0) for seed in (1, 2, 3)))  # the same images with every seed
    assert again.clients[0].error == pytest.approx((9 * 15 + 3) ** 0.5 / 300)


def test_seeds_that_disagree_add_what_exceeds_the_images() -> None:
    """Differences 0, 0.1 and 0.2 vary by 0.01, of which the images explain the mean of (b + c)/n^2 - d^2/n."""
    tests = [a_test(0, 1, 0, 0), a_test(0, 2, 10, 0), a_test(0, 3, 20, 0)]
    images = (0 + 0.0009 + 0.0016) / 3
    found = compared(*tests).clients[0]
    assert found.error**2 == pytest.approx((30 + 3) / 300**2 + (0.01 - images) / 3)
    assert found.freedom == pytest.approx(2.0, abs=0.7)


def test_a_known_seed_deviation_counts_where_there_is_one_seed() -> None:
    found = compared(a_test(0, 1, 0, 0), between_seeds=0.3)
    assert found.mean.error == pytest.approx((1 / 100**2 + 0.09) ** 0.5)


def test_a_known_seed_deviation_holds_the_part_of_the_images() -> None:
    """Of 0.04 the images of 20 better ones explain 0.2 * 0.8 / 100; the rest is the seed's own variance."""
    found = compared(a_test(0, 1, 20, 0), between_seeds=0.2)
    assert found.mean.error**2 == pytest.approx(21 / 100**2 + 0.04 - 0.0016)
    small = compared(a_test(0, 1, 20, 0), between_seeds=0.01)
    assert small.mean.error**2 == pytest.approx(21 / 100**2)


def test_a_known_seed_deviation_is_the_least_that_several_seeds_have() -> None:
    """Seeds that agree would leave the error of the images; with 0.2 known the variance is at least 0.04 / 2."""
    tests = [a_test(0, seed, 20, 0) for seed in (1, 2)]
    found = compared(*tests, between_seeds=0.2)
    assert found.mean.error**2 == pytest.approx(42 / 200**2 + 0.04 / 2 - 0.0016 / 2)
    assert found.mean.freedom == Estimate(0.0, 1.0).freedom
    apart = [a_test(0, 1, 60, 0), a_test(0, 2, 0, 0)]
    assert compared(*apart, between_seeds=0.2).mean == compared(*apart).mean


def test_clear_differences_are_named_and_their_direction() -> None:
    tests = [a_test(k, s, 30 * (k == 0), 30 * (k == 1)) for k in range(4) for s in (1, 2, 3)]
    assert list(compared(*tests).words.values()) == ["helped", "harmed", "undecided", "undecided"]


def test_a_client_that_was_tested_with_one_seed_is_not_named() -> None:
    tests = [a_test(0, 1, 40, 0), *(a_test(1, seed, 40, 0) for seed in (1, 2, 3))]
    assert compared(*tests).words == {0: "undecided", 1: "helped"}


def test_equal_answers_are_no_difference() -> None:
    found = compared(*(a_test(k, s, 0, 0) for k in range(3) for s in (1, 2, 3)))
    assert (found.mean.value, found.mean.p, set(found.words.values())) == (0.0, 1.0, {"undecided"})
    assert found.mean.low == -found.mean.high < 0


def test_nothing_cannot_be_compared() -> None:
    assert compare_paired([]) is None


def test_counts_without_bits_have_the_discordant_images_of_independent_tests() -> None:
    test = paired_from_counts(0, 1, (80, 100), (60, 100), "d")
    assert ((test.gain == 1).sum(), (test.gain == -1).sum()) == (32, 12)  # 0.8 * 0.4 and 0.6 * 0.2
    same = paired_from_counts(1, 1, (70, 100), (60, 100), "d")
    other = paired_from_counts(1, 2, (70, 100), (60, 100), "d")
    assert np.array_equal(test.images, same.images)
    assert not set(test.images) & set(other.images)


def test_another_metric_has_its_own_standard_errors() -> None:
    found = compared(paired_from_errors(0, 1, 0.2, (0.03, 0.04), "d"))
    assert found.mean.value == pytest.approx(0.2)
    assert found.mean.error == pytest.approx(0.05, rel=1e-3)


@given(st.integers(0, 50), st.integers(0, 50))
def test_counts_keep_the_difference(ours: int, theirs: int) -> None:
    test = paired_from_counts(0, 1, (ours, 50), (theirs, 50), "")
    assert test.gain.sum() == ours - theirs


def test_holm_by_hand() -> None:
    assert holm({"a": 0.03, "b": 0.01, "c": 0.02}) == {"b": pytest.approx(0.03), "c": 0.04, "a": 0.04}
    assert holm({}) == {}


def test_intervals_are_students() -> None:
    assert Estimate(1.0, 1.0).high == pytest.approx(2.95996, abs=1e-4)
    assert Estimate(0.0, 1.0, 2.0).margin == pytest.approx(4.30265, abs=1e-4)
    assert Estimate(4.30265, 1.0, 2.0).p == pytest.approx(0.05, abs=1e-4)
    assert Estimate(0.0, 0.0).p == 1.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=6, max_size=6), st.permutations(range(6)))
def test_the_order_of_tests_and_the_sides_do_not_matter(counts: list[tuple[int, int]], order: list[int]) -> None:
    tests = [a_test(at % 2, at // 2, *pair, size=20) for at, pair in enumerate(counts)]
    found, shuffled = compared(*tests), compared(*(tests[at] for at in order))
    turned = compared(*(PairedTest(t.client, t.seed, -t.gain, t.images) for t in tests))
    for k in (0, 1):
        assert shuffled.clients[k].error == pytest.approx(found.clients[k].error)
        assert shuffled.words[k] == found.words[k]
        assert turned.clients[k].value == pytest.approx(-found.clients[k].value)
        assert turned.clients[k].p == pytest.approx(found.clients[k].p)
    assert turned.mean.error == pytest.approx(found.mean.error)
