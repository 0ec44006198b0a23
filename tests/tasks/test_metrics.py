"""Metrics equal scikit-learn's; a jackknife of a mean is its standard error."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from factorized_fl.tasks.metrics import METRICS, area_under_roc, standard_error_of

CLASSES, LABELS, NUMBERS = (METRICS[kind] for kind in ("classes", "labels", "numbers"))


def drawn(seed: int, examples: int, columns: int) -> torch.Tensor:
    """Outputs with ties."""
    return torch.randn(examples, columns, generator=torch.Generator().manual_seed(seed)).mul(4).round() / 4


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), examples=st.integers(4, 40), classes=st.integers(2, 5))
def test_metrics_of_classes_equal_those_of_scikit_learn(seed: int, examples: int, classes: int) -> None:
    outputs = drawn(seed, examples, classes)
    y = torch.arange(examples) % classes
    predicted = outputs.argmax(1)
    assert CLASSES["accuracy"].compute(outputs, y) == pytest.approx(sk.accuracy_score(y, predicted))
    assert CLASSES["balanced-accuracy"].compute(outputs, y) == pytest.approx(sk.balanced_accuracy_score(y, predicted))
    assert CLASSES["macro-f1"].compute(outputs, y) == pytest.approx(sk.f1_score(y, predicted, average="macro"))
    if len(y.unique()) == classes:
        scores = outputs.double().softmax(1).numpy()
        if classes == 2:
            wanted = sk.roc_auc_score(y, outputs[:, 1] - outputs[:, 0])
        else:
            wanted = sk.roc_auc_score(y, scores, multi_class="ovr")
        assert CLASSES["auroc"].compute(outputs, y) == pytest.approx(wanted)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), examples=st.integers(4, 40), labels=st.integers(1, 4))
def test_metrics_of_several_labels_and_of_numbers_equal_those_of_scikit_learn(seed, examples, labels) -> None:
    outputs = drawn(seed, examples, labels)
    y = ((torch.arange(examples)[:, None] + torch.arange(labels)) % 2).float()
    right = ((outputs > 0) == (y > 0)).double().mean()
    assert LABELS["accuracy"].compute(outputs, y) == pytest.approx(float(right))
    f1 = [sk.f1_score(y[:, c], outputs[:, c] > 0) for c in range(labels)]
    balanced = [sk.balanced_accuracy_score(y[:, c], outputs[:, c] > 0) for c in range(labels)]
    assert LABELS["macro-f1"].compute(outputs, y) == pytest.approx(sum(f1) / labels)
    assert LABELS["balanced-accuracy"].compute(outputs, y) == pytest.approx(sum(balanced) / labels)
    assert LABELS["auroc"].compute(outputs, y) == pytest.approx(sk.roc_auc_score(y, outputs, average="macro"))
    numbers = drawn(seed + 1, examples, labels) + torch.arange(examples)[:, None]
    assert NUMBERS["r2"].compute(outputs, numbers) == pytest.approx(sk.r2_score(numbers, outputs), abs=1e-4)
    assert NUMBERS["mae"].compute(outputs, numbers) == pytest.approx(sk.mean_absolute_error(numbers, outputs), 1e-5)
    assert NUMBERS["rmse"].compute(outputs, numbers) == pytest.approx(
        float((outputs - numbers).double().square().mean()) ** 0.5
    )


def test_an_area_is_undefined_without_examples_of_both_sides() -> None:
    assert math.isnan(area_under_roc(torch.tensor([0.1, 0.2]), torch.tensor([True, True])))
    assert area_under_roc(torch.tensor([0.1, 0.2, 0.2]), torch.tensor([False, True, False])) == 0.75


def test_the_error_of_a_mean_is_its_standard_error() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None]
    error = standard_error_of(lambda outputs, targets: float(outputs.mean()), values, torch.zeros(4))
    assert error == pytest.approx(float(values.std() / 2))
    assert math.isnan(standard_error_of(lambda outputs, targets: 1.0, values[:1], torch.zeros(1)))


def test_more_of_a_score_is_better() -> None:
    assert NUMBERS["mae"].score(0.25) == -0.25
    assert NUMBERS["r2"].score(0.25) == 0.25
