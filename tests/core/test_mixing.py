import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core import mixing
from factorized_fl.core.mixing import (
    Dense,
    Groups,
    Mean,
    Sparse,
    Weights,
    cosine,
    dense,
    finite_rows,
    group_mean,
    in_place,
    own_tensors,
    similar_peers,
    softmax_over,
    weigh,
    weighted_mean,
    weights_from,
)
from factorized_fl.methods import make_method
from tests.methods.hand import server

K = 6
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


# -- matching


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


def test_similarity_to_oneself_counts_as_one_even_for_a_zero_vector() -> None:
    sigma = cosine(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    assert sigma[0].tolist() == [0, 0, 0, 0]
    assert sigma[1, 2] == pytest.approx(math.sqrt(0.5))
    matrix = matched(sigma, ALL, tau=0.5, epsilon=1.0, minimum=1)
    assert matrix[0].tolist() == [1, 0, 0, 0]


def test_clients_that_never_participated_are_no_peers_of_others() -> None:
    received = torch.tensor([True, True, False, False])
    matrix = matched(SIGMA, received, tau=-1.0, epsilon=0.0, minimum=4)
    assert matrix[0].tolist() == pytest.approx([0.5, 0.5, 0, 0])
    assert matrix[2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_one_cluster_of_equal_vectors_gives_the_plain_mean() -> None:
    matrix = matched(cosine(torch.ones(4, 3)), ALL, tau=0.75, epsilon=20.0, minimum=1)
    stack = torch.randn(4, 2, 3)
    assert torch.allclose(Dense(matrix).apply(stack, range(4)), stack.mean(0).expand(4, 2, 3), atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tau=st.floats(-1, 1),
    epsilon=st.floats(0, 50),
    minimum=st.integers(1, 8),
    order=st.permutations(range(6)),
    participated=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_matching_is_stochastic_and_equivariant(
    seed: int, tau: float, epsilon: float, minimum: int, order: list[int], participated: list[bool]
) -> None:
    vectors = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    received = torch.tensor(participated)
    matrix = matched(cosine(vectors), received, tau=tau, epsilon=epsilon, minimum=minimum)
    assert (matrix >= 0).all()
    assert torch.allclose(matrix.sum(1), torch.ones(6, dtype=torch.float64))
    renumbered = matched(cosine(vectors[order]), received[order], tau=tau, epsilon=epsilon, minimum=minimum)
    assert torch.allclose(renumbered, matrix[order][:, order], atol=1e-12)


# -- weights by hand


def test_weighted_mean_renormalises_over_the_received_clients() -> None:
    mean = weighted_mean(torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64), torch.tensor([True, True, False]))
    assert dense(mean).tolist() == [[0.25, 0.75, 0.0]] * 3


def test_group_mean_leaves_out_clients_that_never_participated() -> None:
    group = torch.tensor([0, 0, 1])
    weights = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    found = group_mean(group, torch.tensor([True, False, False]), weights)
    assert dense(found).tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    found = group_mean(group, torch.tensor([True, True, True]), weights)
    assert dense(found).tolist() == [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]]


def test_sparse_weights_by_hand() -> None:
    weights = Sparse(torch.tensor([[1, 2], [1, 0], [2, 2]]), torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]))
    assert dense(weights).tolist() == [[0, 0.25, 0.75], [0, 1, 0], [0, 0, 1]]
    stack = torch.tensor([[1.0], [4.0], [8.0]])
    assert weights.apply(stack, [2, 0]).tolist() == [[8.0], [7.0]]
    assert torch.equal(dense(own_tensors(3)), torch.eye(3, dtype=torch.float64))


def test_weighing_reads_a_snapshot() -> None:
    stack = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    matrix = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    assert weigh(matrix, stack).tolist() == [[2.0, 20.0], [2.5, 25.0]]
    assert stack.tolist() == [[1.0, 10.0], [3.0, 30.0]]


def test_in_place_mixing_reads_what_earlier_clients_received() -> None:
    """By hand: client 1 becomes (1 + 3) / 2 = 2 first, then client 0 averages 1 and 2."""
    matrix = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    stack = torch.tensor([[1.0], [3.0]])
    assert weigh(in_place(matrix, [1, 0]), stack).flatten().tolist() == [1.5, 2.0]
    assert weigh(in_place(matrix, [0, 1]), stack).flatten().tolist() == [2.0, 2.5]


def test_zero_weight_excludes_a_client_that_diverged() -> None:
    vectors = torch.tensor([[1.0, 0.1], [1.0, 0.0], [float("nan"), 1.0]])
    matrix = matched(cosine(vectors), torch.ones(3, dtype=torch.bool), tau=0.5, epsilon=1.0, minimum=2)
    assert matrix[:2, 2].tolist() == [0, 0]
    assert torch.allclose(matrix.sum(1), torch.ones(3, dtype=torch.float64))
    values = torch.tensor([[1.0], [3.0], [float("nan")]])
    for infinite in (float("nan"), float("inf")):
        values[2] = infinite
        mixed = weigh(matrix, values)  # the row of the third client included
        assert torch.allclose(mixed[:2], weigh(matrix[:2, :2], values[:2]))
        assert mixed[2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_with_any_number_that_is_not_finite_are_found(dtype: torch.dtype) -> None:
    rows = [[1.0, -2.0], [math.nan, 1.0], [1.0, math.inf], [-math.inf, 1.0], [math.inf, math.nan], [0.0, 0.0]]
    assert finite_rows(torch.tensor(rows, dtype=dtype)).tolist() == [True, False, False, False, False, True]


def test_whole_numbers_and_rows_without_numbers_are_finite() -> None:
    assert finite_rows(torch.tensor([[1, 2], [3, 4]])).tolist() == [True, True]
    assert finite_rows(torch.zeros(2, 0)).tolist() == [True, True]


# -- the four structures


def drawn(seed: int) -> tuple[torch.Generator, Callable[..., torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return generator, lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)


def make_mean(seed: int, received: torch.Tensor) -> Weights:
    _, rand = drawn(seed)
    return weighted_mean(rand(K) + 0.01, received)


def make_groups(seed: int, received: torch.Tensor) -> Weights:
    generator, rand = drawn(seed)
    return group_mean(torch.randint(0, 4, (K,), generator=generator), received, rand(K) + 0.01)


def make_sparse(seed: int, received: torch.Tensor) -> Weights:
    generator, rand = drawn(seed)
    shares = rand(K, 3) + 0.01
    peers = torch.randint(0, K, (K, 3), generator=generator)  # a client may occur twice in a row
    peers[:, 0] = torch.arange(K)
    shares[:, 1:] *= received[peers[:, 1:]]
    return Sparse(peers, shares / shares.sum(1, keepdim=True))


def make_dense(seed: int, received: torch.Tensor) -> Weights:
    _, rand = drawn(seed)
    matrix = (rand(K, K) + 0.01) * (received | torch.eye(K, dtype=torch.bool))
    return Dense(matrix / matrix.sum(1, keepdim=True))


def by_hand(weights: Weights) -> torch.Tensor:
    """The K x K matrix of a structure, entry by entry."""
    matrix = torch.zeros(K, K, dtype=torch.float64)
    for k in range(K):
        if isinstance(weights, Mean):
            matrix[k] = weights.row
        elif isinstance(weights, Dense):
            matrix[k] = weights.matrix[k]
        elif isinstance(weights, Sparse):
            for peer, share in zip(weights.peers[k].tolist(), weights.shares[k].tolist(), strict=True):
                matrix[k, peer] += share
        elif isinstance(weights, Groups):
            members = [j for j in range(K) if weights.group[j] == weights.group[k] and weights.weight[j] > 0] or [k]
            total = sum(float(weights.weight[j]) for j in members)
            for j in members:
                matrix[k, j] = float(weights.weight[j]) / total if total else 1.0
    return matrix


MAKERS = [make_mean, make_groups, make_sparse, make_dense]


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    participated=st.lists(st.booleans(), min_size=K, max_size=K).filter(any),
    diverged=st.lists(st.sampled_from([0.0, math.nan, math.inf]), min_size=K, max_size=K),
    clients=st.lists(st.integers(0, K - 1), min_size=1, max_size=K, unique=True),
    kind=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_structure_equals_its_dense_matrix(make, seed, participated, diverged, clients, kind) -> None:
    """Also where clients that have weight zero diverged; a client that diverged and has weight makes a row NaN."""
    weights = make(seed, torch.tensor(participated))
    matrix = by_hand(weights)
    assert weights.count == K
    assert weights.complaint() == ""
    assert torch.allclose(dense(weights), matrix, atol=1e-12)
    assert torch.allclose(weights.rows(clients), matrix[clients], atol=1e-12)
    stack = torch.randn(K, 2, 3, generator=torch.Generator().manual_seed(seed)).to(kind)
    stack[:, 1, 1] += torch.tensor(diverged, dtype=kind)
    before = stack.clone()
    mixed = weights.apply(stack, clients)
    assert torch.equal(stack.nan_to_num(), before.nan_to_num())
    assert mixed.dtype == kind
    assert mixed.shape == (len(clients), 2, 3)
    clean = stack.isfinite().flatten(1).all(1)
    for row, k in enumerate(clients):
        if (matrix[k, ~clean] > 0).any():
            assert mixed[row].isnan().all()
            continue
        expected = torch.einsum("k,k...->...", matrix[k, clean], stack[clean].double())
        assert torch.allclose(mixed[row].double(), expected, atol=1e-5 if kind == torch.float32 else 1e-12)


@pytest.mark.parametrize("make", MAKERS)
def test_a_structure_is_read_back_from_its_tensors(make) -> None:
    weights = make(5, torch.tensor([True, False, True, True, False, True]))
    tensors = weights.tensors()
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    back = weights_from(tensors | {"similarity": torch.eye(K)})  # a file of a round holds other tensors, too
    assert type(back) is type(weights)
    assert back.tensors().keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in back.tensors().items())
    assert torch.equal(dense(back), dense(weights))


def test_other_tensors_are_no_weights() -> None:
    with pytest.raises(KeyError):
        weights_from({"similarity": torch.eye(3)})


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        (Mean(torch.tensor([0.5, 0.6])), "rows must sum to 1, without negative weights"),
        (Mean(torch.tensor([1.5, -0.5])), "rows must sum to 1, without negative weights"),
        (Mean(torch.tensor([torch.nan, 1.0])), "rows must sum to 1, without negative weights"),
        (Mean(torch.ones(2, 2) / 2), "the mean needs one weight for each client"),
        (Groups(torch.tensor([0, 0]), torch.tensor([1.0])), "groups need one number and one weight for each client"),
        (Groups(torch.zeros(2, 2), torch.ones(2, 2)), "groups need one number and one weight for each client"),
        (Groups(torch.tensor([0, 0]), torch.tensor([1.0, -1.0])), "groups must be finite and not negative"),
        (Groups(torch.tensor([0, 0]), torch.tensor([1.0, torch.inf])), "groups must be finite and not negative"),
        (Sparse(torch.tensor([[0], [1]]), torch.ones(2, 2) / 2), "sparse weights need a share for each peer"),
        (Sparse(torch.tensor([0, 1]), torch.ones(2)), "sparse weights need a share for each peer"),
        (Sparse(torch.tensor([[0], [2]]), torch.ones(2, 1)), "sparse weights name a client that does not exist"),
        (Sparse(torch.tensor([[0], [-1]]), torch.ones(2, 1)), "sparse weights name a client that does not exist"),
        (Sparse(torch.tensor([[0], [1]]), torch.full((2, 1), 0.9)), "rows must sum to 1, without negative weights"),
        (Dense(torch.ones(2, 3) / 3), "the matrix must be square"),
        (Dense(torch.ones(2)), "the matrix must be square"),
        (Dense(2 * torch.eye(2)), "rows must sum to 1, without negative weights"),
    ],
)
def test_malformed_weights_have_a_complaint(weights: Weights, complaint: str) -> None:
    assert weights.complaint().endswith(complaint)


MANY = 50_000


def test_the_mean_over_many_clients_allocates_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 x 50,000 weights would be 20 GB; the row of the mean is 400 kB."""
    largest = 0
    usual = mixing.weigh

    def watching(rows: torch.Tensor, stacked: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, len(rows))
        return usual(rows, stacked)

    monkeypatch.setattr(mixing, "weigh", watching)
    stack = torch.arange(MANY, dtype=torch.float64)[:, None]
    sizes = torch.ones(MANY, dtype=torch.float64)
    for method in ("fedavg", "fedprox", "per-fedavg", "pfedpara", "factorized-fedavg"):
        found = make_method(method, {}).mix(server(stack, sizes=sizes.tolist(), received=[True] * MANY)).weights
        assert isinstance(found, Mean)
        assert found.complaint() == ""
        assert sum(tensor.numel() for tensor in found.tensors().values()) == MANY
        assert found.rows(range(MANY)).untyped_storage().nbytes() == 8 * MANY
        mixed = found.apply(stack, range(MANY))
        assert mixed.untyped_storage().nbytes() <= 2 * stack[0].nbytes
        assert mixed[[0, -1]].flatten().tolist() == pytest.approx([(MANY - 1) / 2] * 2)
    assert 0 < largest <= 4


def test_keeping_ones_own_tensors_costs_one_weight_for_each_client() -> None:
    found = make_method("stand-alone", {}).mix(server(torch.zeros(MANY, 1))).weights
    assert isinstance(found, Sparse)
    assert sum(tensor.numel() for tensor in found.tensors().values()) == 2 * MANY
    assert found.complaint() == ""
