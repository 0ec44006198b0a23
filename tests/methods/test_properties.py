"""What must hold of every method's mixing, whatever the clients sent."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.views import Server
from factorized_fl.methods import METHODS, make_method
from tests.methods.hand import server

K = 5
# Settings under which a method does something in a population of five.
OPTIONS: dict[str, dict[str, Any]] = {
    "clustered-fl": {"eps1": 1e6, "eps2": 0.0, "warm_up": 0},
    "fedfomo": {"models": K, "explore": 0.0},
    "random-matching": {"others": 2},
    "worst-matching": {"others": 2},
}
VARIANTS = [(name, OPTIONS.get(name, {})) for name in METHODS] + [
    ("fedfomo", {"models": 3, "explore": 1.0}),
    ("clustered-fl", {}),
    ("factorized-fl", {"tau": -1.0, "minimum": 3, "epsilon": 2.0}),
    ("factorized-fl", {"sequential": True, "tau": -1.0}),
    ("factorized-fl-beta", {"tau": 0.99, "minimum": 3}),
    ("worst-matching", {"others": 3}),
]
IDS = [f"{name} {options}" for name, options in VARIANTS]
OWN_RANDOMNESS = {
    "random-matching": "draws each client's peers by its place in the row",
    "sequential": "the order in which clients are overwritten is drawn by place",
    "explore": "draws whom to try; with fewer models than clients ties are drawn, too",
}


def population(seed: int, answered: list[bool]) -> Server:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(K, *shape, generator=generator, dtype=torch.float64)

    def loss(client: int, tensors: dict[str, torch.Tensor]) -> float:
        return sum(float((tensor - 0.3).square().sum()) for tensor in tensors.values())

    received = torch.tensor(answered)
    start = {"a": draw(3), "b": draw(2, 2)}
    moved = {"a": draw(3), "b": draw(2, 2)}
    # Who never answered still stands where it began.
    stack = {n: start[n] + torch.einsum("k,k...->k...", received.double(), moved[n]) for n in start}
    sizes = torch.randint(1, 100, (K,), generator=generator).tolist()
    return server(
        stack, start=start, received=answered, sizes=sizes, fingerprints=draw(4), loss=loss, round=30, seed=seed
    )


def renumbered(old: Server, order: list[int]) -> Server:
    assert old.fingerprints is not None
    return dataclasses.replace(
        old,
        stack={name: tensor[order] for name, tensor in old.stack.items()},
        start={name: tensor[order] for name, tensor in old.start.items()},
        fingerprints=old.fingerprints[order],
        sizes=old.sizes[order],
        received=old.received[order],
    )


answers = st.lists(st.booleans(), min_size=K, max_size=K).filter(any)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), answered=answers)
def test_rows_are_means_of_those_who_answered(name: str, options: dict, seed: int, answered: list[bool]) -> None:
    asked = population(seed, answered)
    matrix = make_method(name, options).mix(asked).matrix
    assert matrix.shape == (K, K)
    assert matrix.dtype == torch.float64
    assert (matrix >= 0).all()
    assert torch.allclose(matrix.sum(1), torch.ones(K, dtype=torch.float64))
    others = matrix - torch.diag(matrix.diagonal())
    assert (others[:, ~asked.received] == 0).all()


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), answered=answers, order=st.permutations(range(K)))
def test_numbering_does_not_matter(name: str, options: dict, seed: int, answered: list[bool], order: list[int]) -> None:
    for key, reason in OWN_RANDOMNESS.items():
        if name == key or options.get(key):
            pytest.skip(reason)
    if name == "clustered-fl" and options:
        answered = [True] * K  # which half of a cluster a client without an update stays in is arbitrary
    method, asked = make_method(name, options), population(seed, answered)
    mixing, other = method.mix(asked), method.mix(renumbered(asked, order))
    assert torch.allclose(other.matrix, mixing.matrix[order][:, order], atol=1e-9)
    if mixing.revert is not None:
        assert other.revert is not None
        assert torch.equal(other.revert, mixing.revert[order])


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_mixing_only_reads_what_the_server_holds(name: str, options: dict) -> None:
    asked, untouched = (population(3, [True, False, True, True, True]) for _ in range(2))
    make_method(name, options).mix(asked)
    for field in ("stack", "start"):
        for key, tensor in getattr(asked, field).items():
            assert torch.equal(tensor, getattr(untouched, field)[key])
    assert torch.equal(asked.received, untouched.received)
    assert torch.equal(asked.sizes, untouched.sizes)
    assert asked.state == {}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_memory_of_one_shape(name: str) -> None:
    method, state = make_method(name, OPTIONS.get(name, {})), None
    for round in range(3):
        asked = dataclasses.replace(population(round, [True] * K), state=state or {})
        found = method.mix(asked).state
        shapes = {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()}
        if state is not None:
            assert shapes == {key: (tensor.shape, tensor.dtype) for key, tensor in state.items()}
        state = found
