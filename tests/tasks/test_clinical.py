"""Clinical metrics against numbers computed by hand, and their intervals against simulated truth."""

import math

import numpy as np
import pytest

from factorized_fl.tasks.clinical import (
    ClinicalMetrics,
    Measured,
    calibration_error,
    clinical_metrics,
    delong,
    mean_of_shares,
    wilson,
)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def two(*second: float) -> np.ndarray:
    """Probabilities of two classes from those of the second."""
    return np.stack([1 - numbers(*second), numbers(*second)], 1)


def test_wilson_by_hand() -> None:
    """8 of 10: the centre is (0.8 + z²/20) / (1 + z²/10), with z² = 3.8415."""
    found = wilson(8, 10)
    half = 1.96 / 1.38415 * math.sqrt(0.16 / 10 + 3.8415 / 400)
    centre = (0.8 + 0.192073) / 1.38415
    assert (found.value, found.cases) == (0.8, 10)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-4)
    assert (wilson(0, 10).low, wilson(10, 10).high) == (0, 1)
    assert wilson(0, 10).high == pytest.approx(3.8415 / 13.8415, abs=1e-4)
    assert math.isnan(wilson(0, 0).value)


def test_mover_by_hand() -> None:
    """Wilson sides of 0.3 and 0.4 below, 0.1 and 0 above: half of their hypotenuses."""
    found = mean_of_shares([Measured(0.9, 0.6, 1.0, 5), Measured(1.0, 0.6, 1.0, 3)])
    assert (found.value, found.low, found.high) == pytest.approx((0.95, 0.95 - 0.25, 0.95 + 0.05))
    assert found.cases == 8


def test_delong_by_hand() -> None:
    """Positives 3, 2, 1 and negatives 2.5, 0.5, 0, 1: of 12 pairs 9.5 are in order, a tie counting half."""
    found = delong(numbers(3, 2, 1, 2.5, 0.5, 0, 1), np.array([True] * 3 + [False] * 4))
    assert found.value == pytest.approx(9.5 / 12)
    of_positives, of_negatives = numbers(4, 3, 2.5) / 4, numbers(1, 3, 3, 2.5) / 3
    deviation = math.sqrt(of_positives.var(ddof=1) / 3 + of_negatives.var(ddof=1) / 4)
    logit, wide = math.log(9.5 / 2.5), 1.96 * deviation / (9.5 / 12 * 2.5 / 12)
    expected = [1 / (1 + math.exp(-(logit + side * wide))) for side in (-1, 1)]
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-4)


def test_a_perfect_order_has_no_interval() -> None:
    found = delong(numbers(0, 1, 2, 3), np.array([False, False, True, True]))
    assert found.value == 1
    assert math.isnan(found.low)
    assert math.isnan(delong(numbers(0, 1), np.array([True, True])).value)


def test_calibration_error_by_hand() -> None:
    """Confidence 0.95 twice, right once: a gap of 0.45; 0.65 twice, right twice: 0.35; 1.0 belongs to the last bin."""
    right = np.array([True, False, True, True])
    assert calibration_error(numbers(0.95, 0.95, 0.65, 0.65), right) == pytest.approx((0.45 + 0.35) / 2)
    assert calibration_error(numbers(1.0, 0.95), np.array([True, True])) == pytest.approx(0.025)


@pytest.fixture(scope="module")
def six() -> ClinicalMetrics:
    """Six examples of two classes, of which the second, third and sixth are of class 1."""
    return clinical_metrics(two(0.1, 0.8, 0.4, 0.6, 0.2, 0.9), np.array([0, 1, 1, 0, 0, 1]), threshold=0.35)


def test_metrics_by_hand(six: ClinicalMetrics) -> None:
    assert (six.cases, six.accuracy.value) == (6, pytest.approx(4 / 6))
    assert six.balanced_accuracy.value == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert six.brier.value == pytest.approx((0.01 + 0.04 + 0.36 + 0.36 + 0.04 + 0.01) / 6)
    assert six.confusion == ((2, 1), (1, 2))
    first, second = six.classes
    assert (second.sensitivity.value, second.specificity.value) == (1, pytest.approx(2 / 3))  # at 0.35
    assert (first.sensitivity.value, first.specificity.value) == (1, pytest.approx(2 / 3))
    assert second.auroc.value == first.auroc.value == pytest.approx(8 / 9)
    assert (second.sensitivity.cases, second.specificity.cases) == (3, 3)
    assert all(found.few for found in six.classes)


def test_intervals_hold_their_estimates_and_are_the_same_every_time(six: ClinicalMetrics) -> None:
    for found in (six.accuracy, six.balanced_accuracy, six.brier):
        assert 0 <= found.low <= found.value <= found.high <= 1
    assert 0 <= six.calibration_error.low <= six.calibration_error.high
    again = clinical_metrics(two(0.1, 0.8, 0.4, 0.6, 0.2, 0.9), np.array([0, 1, 1, 0, 0, 1]), threshold=0.35)
    assert again == six


def test_a_class_without_cases_is_undefined_and_left_out_of_the_mean() -> None:
    probabilities = numbers(0.5, 0.3, 0.2, 0.2, 0.7, 0.1, 0.6, 0.3, 0.1).reshape(3, 3)
    found = clinical_metrics(probabilities, np.array([0, 1, 1]))
    assert found.balanced_accuracy.value == pytest.approx((1 + 1 / 2) / 2)
    assert found.classes[2].cases == 0
    assert math.isnan(found.classes[2].auroc.value)
    assert math.isnan(found.classes[2].sensitivity.value)
    assert found.classes[2].specificity.value == 1


def covered(found: Measured, truth: float) -> bool:
    return found.low <= truth <= found.high


def test_intervals_cover_the_truth_about_95_times_in_100() -> None:
    """Perfectly calibrated probabilities, uniform: both accuracies 3/4, calibration error 0, Brier 1/6, AUROC 5/6."""
    hits = {"accuracy": 0, "balanced_accuracy": 0, "brier": 0, "calibration_error": 0, "auroc": 0}
    rng = np.random.default_rng(7)
    for _ in range(25):
        chance = rng.random(150)
        found = clinical_metrics(two(*chance), (rng.random(150) < chance).astype(np.int64))
        truths = {"accuracy": 0.75, "balanced_accuracy": 0.75, "brier": 1 / 6, "calibration_error": 0.0}
        for name, truth in truths.items():
            hits[name] += covered(getattr(found, name), truth)
        hits["auroc"] += covered(found.classes[1].auroc, 5 / 6)
    assert all(count >= 22 for name, count in hits.items() if name != "calibration_error"), hits
    assert hits["calibration_error"] >= 15, hits
