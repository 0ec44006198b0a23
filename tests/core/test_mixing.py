import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.mixing import (
    cosine,
    group_mean,
    in_place,
    mix,
    similar_peers,
    softmax_over,
    weighted_mean,
)

ALL = torch.ones(4, dtype=torch.bool)
SIGMA = torch.tensor(
    [[1.0, 0.9, 0.2, 0.5], [0.9, 1.0, 0.4, 0.1], [0.2, 0.4, 1.0, 0.8], [0.5, 0.1, 0.8, 1.0]], dtype=torch.float64
)


def matched(
    similarity: torch.Tensor, received: torch.Tensor, *, tau: float, epsilon: float, minimum: int
) -> torch.Tensor:
    return softmax_over(similar_peers(similarity, received, tau, minimum), similarity, epsilon)


def softmax(*values: float) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def test_tau_excludes_and_epsilon_sharpens() -> None:
    matrix = matched(SIGMA, ALL, tau=0.5, epsilon=2.0, minimum=1)
    a, b, d = softmax(2.0, 1.8, 1.0)
    assert matrix[0].tolist() == pytest.approx([a, b, 0, d])
    assert matrix[1].tolist() == pytest.approx([*reversed(softmax(2.0, 1.8)), 0, 0])


def test_minimum_fills_up_with_the_most_similar() -> None:
    matrix = matched(SIGMA, ALL, tau=0.95, epsilon=1.0, minimum=2)
    a, b = softmax(1.0, 0.9)
    assert matrix[0].tolist() == pytest.approx([a, b, 0, 0])
    c, d = softmax(1.0, 0.8)
    assert matrix[3].tolist() == pytest.approx([0, 0, d, c])


def test_oneself_counts_as_similarity_one_even_with_a_zero_vector() -> None:
    sigma = cosine(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    assert sigma[0].tolist() == [0, 0, 0, 0]
    assert sigma[1, 2] == pytest.approx(math.sqrt(0.5))
    matrix = matched(sigma, ALL, tau=0.5, epsilon=1.0, minimum=1)
    assert matrix[0].tolist() == [1, 0, 0, 0]


def test_those_who_never_answered_are_nobodys_peers_but_their_own() -> None:
    received = torch.tensor([True, True, False, False])
    matrix = matched(SIGMA, received, tau=-1.0, epsilon=0.0, minimum=4)
    assert matrix[0].tolist() == pytest.approx([0.5, 0.5, 0, 0])
    assert matrix[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_weighted_mean_renormalises_over_those_who_answered() -> None:
    matrix = weighted_mean(torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64), torch.tensor([True, True, False]))
    assert matrix.tolist() == [[0.25, 0.75, 0.0]] * 3


def test_one_cluster_of_equal_vectors_gives_the_plain_mean() -> None:
    matrix = matched(cosine(torch.ones(4, 3)), ALL, tau=0.75, epsilon=20.0, minimum=1)
    stack = torch.randn(4, 2, 3)
    assert torch.allclose(mix(matrix, stack), stack.mean(0).expand(4, 2, 3), atol=1e-6)


def test_mix_reads_a_snapshot() -> None:
    stack = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    matrix = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    assert mix(matrix, stack).tolist() == [[2.0, 20.0], [2.5, 25.0]]
    assert stack.tolist() == [[1.0, 10.0], [3.0, 30.0]]


def test_group_mean_leaves_out_those_who_never_answered() -> None:
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    weights = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    matrix = group_mean(same, torch.tensor([True, False, False]), weights)
    assert matrix.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    matrix = group_mean(same, torch.tensor([True, True, True]), weights)
    assert matrix.tolist() == [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]]


def test_in_place_mixing_reads_what_earlier_clients_received() -> None:
    """By hand: client 1 becomes (1 + 3) / 2 = 2 first, then client 0 averages 1 and 2."""
    matrix = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    stack = torch.tensor([[1.0], [3.0]])
    assert mix(in_place(matrix, [1, 0]), stack).flatten().tolist() == [1.5, 2.0]
    assert mix(in_place(matrix, [0, 1]), stack).flatten().tolist() == [2.0, 2.5]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tau=st.floats(-1, 1),
    epsilon=st.floats(0, 50),
    minimum=st.integers(1, 8),
    order=st.permutations(range(6)),
    answered=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_matching_is_stochastic_and_equivariant(
    seed: int, tau: float, epsilon: float, minimum: int, order: list[int], answered: list[bool]
) -> None:
    vectors = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    received = torch.tensor(answered)
    matrix = matched(cosine(vectors), received, tau=tau, epsilon=epsilon, minimum=minimum)
    assert (matrix >= 0).all()
    assert torch.allclose(matrix.sum(1), torch.ones(6, dtype=torch.float64))
    renumbered = matched(cosine(vectors[order]), received[order], tau=tau, epsilon=epsilon, minimum=minimum)
    assert torch.allclose(renumbered, matrix[order][:, order], atol=1e-12)


def test_a_client_that_diverged_ruins_nobody_who_gives_it_no_weight() -> None:
    vectors = torch.tensor([[1.0, 0.1], [1.0, 0.0], [float("nan"), 1.0]])
    everybody = torch.ones(3, dtype=torch.bool)
    matrix = matched(cosine(vectors), everybody, tau=0.5, epsilon=1.0, minimum=2)
    assert matrix[:2, 2].tolist() == [0, 0]
    assert torch.allclose(matrix.sum(1), torch.ones(3, dtype=torch.float64))
    values = torch.tensor([[1.0], [3.0], [float("nan")]])
    for infinite in (float("nan"), float("inf")):
        values[2] = infinite
        mixed = mix(matrix, values)  # the third one's own row included
        assert torch.allclose(mixed[:2], mix(matrix[:2, :2], values[:2]))
        assert mixed[2].isnan().all()
