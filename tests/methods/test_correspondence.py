import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.config import Config
from factorized_fl.core.classes import DRIFT, MEANS, SPREAD, Matcher
from factorized_fl.core.errors import UserError
from factorized_fl.methods.class_evidence import classes_differ, likelihood_ratios
from factorized_fl.methods.class_statistics import FEATURES, covariance, describe_classes, random_features
from factorized_fl.methods.correspondence import (
    ClassifierMatcher,
    StatisticsMatcher,
    assign_classes,
    direction_evidence,
)

IMAGES = 60  # of each class
DEFAULT = next(field.default for field in dataclasses.fields(Config) if field.name == "align_confidence")


def drawn(classes: list[list[int]], seed: int, size: float = 1.0, scrambled: int = 0) -> list[tuple]:
    """Features and labels of clients that have these classes of a common pool; the last ones have random labels."""
    rng = torch.Generator().manual_seed(seed)
    centres = size * torch.randn(1 + max(max(own) for own in classes), FEATURES, generator=rng)
    mixed = torch.randn(FEATURES, FEATURES, generator=rng) / 8
    clients = []
    for k, own in enumerate(classes):
        labels = torch.arange(len(own)).repeat(IMAGES)
        images = centres[torch.tensor(own)[labels]] + torch.randn(len(labels), FEATURES, generator=rng)
        if k >= len(classes) - scrambled:
            labels = labels[torch.randperm(len(labels), generator=rng)]
        clients.append((images @ mixed, labels))
    return clients


def described(clients: list[tuple], most: int = 10, noise: float = 0.0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    each = [describe_classes(features, labels, most, noise, rng) for features, labels in clients]
    return {name: torch.stack([one[name] for one in each]) for name in (MEANS, SPREAD)}


def judged(
    extra: dict[str, torch.Tensor], truth: list[list[int]], matcher: Matcher | None = None
) -> list[tuple[float, bool]]:
    """The confidence of every match of two classes, and whether it is right."""
    found = (matcher or StatisticsMatcher()).match(extra, torch.ones(len(truth), dtype=torch.bool))
    classes = [(k, c) for k, own in enumerate(truth) for c in range(len(own))]
    return [
        (float(min(found.confidence[one], found.confidence[two])), truth[one[0]][one[1]] == truth[two[0]][two[1]])
        for i, one in enumerate(classes)
        for two in classes[i + 1 :]
        if found.labels[one] == found.labels[two] >= 0
    ]


def test_classes_of_three_clients_are_matched() -> None:
    truth = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [3, 0, 4, 2, 1]]
    pairs = judged(described(drawn(truth, 1)), truth)
    assert len(pairs) == 15
    assert all(right and confidence > 0.9 for confidence, right in pairs)


@pytest.mark.parametrize("size", [0.3, 0.6, 1.0])
def test_with_different_classes_and_a_split_one_no_false_match_is_sure(size: float) -> None:
    """10, 7 and 4 classes, of which 4 are common. Class 3 of the first is two classes, 3 and 11, of the second.

    The two halves are drawn from one class, so no statistics tell which of them is the class of the others.
    """
    whole = [list(range(10)), [3, 2, 1, 0, 10, 3, 12], [1, 0, 3, 2]]
    truth = [list(range(10)), [20, 2, 1, 0, 10, 21, 12], [1, 0, 3, 2]]
    right = 0
    for draw in range(20):
        pairs = judged(described(drawn(whole, draw, size)), truth)
        assert not [confidence for confidence, true in pairs if not true and confidence > 0.9]
        right += sum(true for _, true in pairs)
    assert size < 1 or right > 20 * 7  # of 10 in each draw


def test_a_client_with_random_labels_is_matched_to_nothing() -> None:
    truth = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [0, 1, 2, 3, 4]]
    for draw in range(10):
        found = StatisticsMatcher().match(described(drawn(truth, draw, scrambled=1)), torch.ones(3, dtype=torch.bool))
        assert (found.confidence[2] < DEFAULT).all()
        assert (found.confidence[:2, :5] > 0.5).all()


@pytest.mark.parametrize(("noise", "size"), [(0.0, 0.4), (0.3, 0.8)])
def test_random_groups_of_images_are_no_classes(noise: float, size: float) -> None:
    """Classes that hardly differ, of clients with few of them and with one; the last client has random labels."""
    truth = [[0, 1, 2, 3, 4], [2, 0], [3], [0, 1, 2, 3, 4]]
    for draw in range(10):
        extra = described(drawn(truth, draw, size, scrambled=1), noise=noise)
        there = extra[MEANS][:, :, -1] > 0
        assert classes_differ(extra, there).tolist() == [True, True, True, False]
        assert not classes_differ(extra, there & False).any()


def test_clients_without_a_common_class_are_not_matched() -> None:
    truth = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    for draw in range(10):
        assert all(confidence < DEFAULT for confidence, _ in judged(described(drawn(truth, draw)), truth))


def same_matches(one: torch.Tensor, two: torch.Tensor) -> None:
    """Asserts that classes with one label in the one have one label in the other."""
    one, two = one.flatten(), two.flatten()
    assert (one >= 0).any()
    assert torch.equal(one < 0, two < 0)
    known = one >= 0
    assert torch.equal(one[known, None] == one[known], two[known, None] == two[known])


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(3)), st.permutations(range(5)), st.integers(0, 3))
def test_renumbering_changes_nothing_but_the_numbering(clients, classes, draw) -> None:
    extra = described(drawn([[0, 1, 2, 3, 4], [4, 2, 0, 1], [3, 0, 5, 2, 1]], draw, 0.4), most=5)
    found = StatisticsMatcher().match(extra, torch.ones(3, dtype=torch.bool))
    other = {MEANS: extra[MEANS][clients][:, classes], SPREAD: extra[SPREAD][clients]}
    again = StatisticsMatcher().match(other, torch.ones(3, dtype=torch.bool))
    same_matches(found.labels[clients][:, classes], again.labels)
    assert torch.allclose(found.confidence[clients][:, classes], again.confidence, atol=1e-6)


def test_noise_is_declared_and_costs_matches() -> None:
    truth = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3]]
    clients = drawn(truth, 1)
    loud = described(clients, noise=2.0)
    assert torch.allclose(loud[MEANS][0, :5, -1], torch.tensor(1 / IMAGES + 4.0))
    assert not loud[MEANS][0, 5:].any()
    assert len(judged(loud, truth)) < len(judged(described(clients), truth))


def test_a_description_is_made_of_means_and_one_covariance() -> None:
    features, labels = torch.randn(40, FEATURES), torch.arange(40) % 3
    found = describe_classes(features, labels, 4, 0.0, torch.Generator())
    assert torch.allclose(found[MEANS][1, :-1], features[labels == 1].mean(0), atol=1e-6)
    assert found[MEANS][:, -1].tolist() == pytest.approx([1 / 14, 1 / 13, 1 / 13, 0])
    inside = torch.cat([features[labels == c] - features[labels == c].mean(0) for c in range(3)])
    assert torch.allclose(covariance(found[SPREAD]).float(), inside.T @ inside / 37, atol=1e-5)


def test_a_client_with_one_image_of_each_class_has_a_description() -> None:
    found = describe_classes(torch.randn(3, FEATURES), torch.arange(3), 3, 0.5, torch.Generator())
    assert all(tensor.isfinite().all() for tensor in found.values())


def test_evidence_is_the_logarithm_of_a_likelihood_ratio() -> None:
    """One feature: compared with normal densities of the pair, computed directly."""
    means, variance = np.array([[3.0], [2.5], [-2.0], [-3.5]]), np.array([0.1, 0.2, 0.3, 0.1])
    weight = 1 / variance / (1 / variance).sum()
    centre = weight @ means[:, 0]
    between = weight @ (means[:, 0] - centre) ** 2 - weight @ variance
    scores = likelihood_ratios(means, variance, np.array([[1.0]]), 1e9)

    def density(values: np.ndarray, matrix: np.ndarray) -> float:
        return -0.5 * (values @ np.linalg.solve(matrix, values) + np.log(np.linalg.det(2 * np.pi * matrix)))

    for i, j in ((0, 1), (1, 2), (0, 3)):
        pair, own = means[[i, j], 0] - centre, np.diag(variance[[i, j]])
        expected = density(pair, own + between) - density(pair, own + between * np.eye(2))
        assert scores[i, j] == pytest.approx(expected, rel=0.01)


def test_no_group_holds_two_classes_of_one_client() -> None:
    scores, owner = np.full((6, 6), 9.0), np.array([0, 0, 1, 1, 2, 2])
    labels, confidence = assign_classes(scores, owner)
    assert all(len(set(owner[labels == label])) == (labels == label).sum() for label in set(labels))
    assert (confidence < 0.6).all()  # each could as well be matched with the other class


def test_the_assignment_is_the_best_joint_one() -> None:
    """Class 0 of client 0 fits class 2 a little better than class 3, which fits nothing else."""
    scores, owner = np.full((4, 4), -9.0), np.array([0, 0, 1, 1])
    for i, j, value in ((0, 2, 9.0), (0, 3, 8.0), (1, 2, 8.0), (1, 3, -9.0)):
        scores[i, j] = scores[j, i] = value
    labels, _ = assign_classes(scores, owner)
    assert labels[0] == labels[3]
    assert labels[1] == labels[2]


def moved(classes: list[list[int]], draw: int, noise: float, unrelated: int = 0) -> torch.Tensor:
    """How rows have moved at clients that have these classes of a common pool; those of the last ones are noise."""
    rng = torch.Generator().manual_seed(draw)
    centres = torch.randn(1 + max(max(own) for own in classes), 32, generator=rng)
    rows = torch.zeros(len(classes), max(map(len, classes)), 32)
    for k, own in enumerate(classes):
        drawn_rows = torch.randn(len(own), 32, generator=rng)
        related = k < len(classes) - unrelated
        rows[k, : len(own)] = (k + 1) * (centres[own] + noise * drawn_rows if related else drawn_rows)
    return rows


def by_direction(rows: torch.Tensor, truth: list[list[int]]) -> list[tuple[float, bool]]:
    """As `judged`, for rows of classifiers."""
    return judged({DRIFT: rows}, truth, ClassifierMatcher())


def test_rows_of_classifiers_are_matched_by_direction() -> None:
    truth = [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 0, 5, 4, 1, 3]]
    pairs = by_direction(moved(truth, 3, 0.4), truth)
    assert len(pairs) == 18
    assert all(right and confidence > 0.9 for confidence, right in pairs)


@pytest.mark.parametrize("classes", [[6, 6, 6], [10, 10], [10, 7, 4], [3, 3, 3, 3]])
def test_rows_that_are_noise_are_matched_with_nothing(classes: list[int]) -> None:
    for draw in range(20):
        rows = moved([list(range(count)) for count in classes], draw, 0.0, unrelated=len(classes))
        found = ClassifierMatcher().match({DRIFT: rows}, torch.ones(len(classes), dtype=torch.bool))
        assert (found.confidence < DEFAULT).all()


@pytest.mark.parametrize(("noise", "enough"), [(0.4, 150), (1.0, 0)])
def test_rows_of_different_classes_and_of_a_split_one_have_no_sure_false_match(noise: float, enough: int) -> None:
    """10, 7 and 4 classes, of which 4 are common; then class 3 of the first is two classes of the second."""
    common = [list(range(10)), [3, 2, 1, 0, 10, 11, 12], [1, 0, 3, 2]]
    split = [list(range(10)), [3, 2, 1, 0, 10, 3, 12], [1, 0, 3, 2]]
    for classes, truth in ((common, common), (split, [split[0], [20, 2, 1, 0, 10, 21, 12], split[2]])):
        right = 0
        for draw in range(20):
            pairs = by_direction(moved(classes, draw, noise), truth)
            assert not [confidence for confidence, true in pairs if not true and confidence > 0.9]
            right += sum(true for confidence, true in pairs if confidence > DEFAULT)
        assert right >= enough


def test_a_client_with_unrelated_rows_is_matched_to_nothing() -> None:
    truth = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [0, 1, 2, 3, 4]]
    for draw in range(20):
        found = ClassifierMatcher().match({DRIFT: moved(truth, draw, 0.4, unrelated=1)}, torch.ones(3) > 0)
        assert (found.confidence[2] < DEFAULT).all()
        assert (found.confidence[:2] > 0.5).all()


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(3)), st.permutations(range(5)), st.integers(0, 3))
def test_renumbering_changes_nothing_in_matches_of_rows(clients, classes, draw) -> None:
    rows = moved([[0, 1, 2, 3, 4], [4, 2, 0, 1], [3, 0, 5, 2, 1]], draw, 0.5)
    found = ClassifierMatcher().match({DRIFT: rows}, torch.ones(3, dtype=torch.bool))
    again = ClassifierMatcher().match({DRIFT: rows[clients][:, classes]}, torch.ones(3, dtype=torch.bool))
    same_matches(found.labels[clients][:, classes], again.labels)
    assert torch.allclose(found.confidence[clients][:, classes], again.confidence, atol=1e-6)


def test_images_without_classes_are_matched_with_nothing() -> None:
    """Labels are random at all clients."""
    for draw in range(10):
        extra = described(drawn([[0, 1, 2, 3, 4]] * 3, draw, scrambled=3))
        found = StatisticsMatcher().match(extra, torch.ones(3, dtype=torch.bool))
        assert (found.confidence < DEFAULT).all()


def test_a_single_client_has_no_matches() -> None:
    extra = described(drawn([[0, 1], [0, 1]], 0))
    assert (StatisticsMatcher().match(extra, torch.tensor([True, False])).labels == -1).all()
    assert (direction_evidence(np.ones((2, 2)), np.array([0, 1])) < 0).all()  # equal rows prove nothing alone


def test_features_are_the_same_everywhere_and_refuse_whole_numbers() -> None:
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(random_features(images, 1), random_features(images, 1))
    assert random_features(images, 1).shape == (3, FEATURES)
    assert random_features(torch.randn(3, 20), 1).shape == (3, FEATURES)
    assert torch.allclose(random_features(images, 1, mirrored=True), random_features(images.flip(3), 1, mirrored=True))
    assert not torch.allclose(random_features(images, 1), random_features(images.flip(3), 1))
    with pytest.raises(UserError, match="whole numbers"):
        random_features(torch.ones(3, 20, dtype=torch.int64), 1)
