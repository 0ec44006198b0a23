"""Properties of the mixing of every method, for random tensors of clients."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorized_fl.core.roles import Role
from factorized_fl.core.views import Server
from factorized_fl.methods import METHODS, make_method
from tests.methods.hand import server

K = 5
# Settings under which a method does more than the plain mean of five clients.
OPTIONS: dict[str, dict[str, Any]] = {
    "clustered-fl": {"rule": "norms", "eps1": 1e6, "eps2": 0.0, "warm_up": 0},
    "fedfomo": {"models": K, "explore": 0.0},
    "pacfl": {"vectors": 2, "threshold": 50.0},
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
    ("fedamp", {"weights": "distance", "sigma": 3.0}),
    ("fedap", {"warm_up": 30}),
]
IDS = [f"{name} {options}" for name, options in VARIANTS]
OWN_RANDOMNESS = {
    "random-matching": "draws each client's peers by its place in the row",
    "sequential": "the order in which clients are overwritten is drawn by place",
    "explore": "draws the models to try; with fewer models than clients also ties",
}


def payloads(name: str, options: dict, asked: Server, draw: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """What clients last sent besides their tensors: positive, as variances are, and zero before they sent anything."""
    model = {n: t[0] for n, t in asked.stack.items()}
    model |= {f"norm.running_{kind}": torch.zeros(3, dtype=torch.float64) for kind in ("mean", "var")}
    in_head = {n: Role("body", True) for n in asked.stack}
    declared = make_method(name, options).extra_up(model, frozenset(asked.stack), in_head)
    received = asked.received.double()
    return {n: torch.einsum("k,k...->k...", received, draw(*like.shape).abs()) for n, like in declared.items()}


def population(
    seed: int, participated: list[bool], name: str = "fedavg", options: dict[str, Any] | None = None
) -> Server:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(K, *shape, generator=generator, dtype=torch.float64)

    def loss(client: int, tensors: dict[str, torch.Tensor]) -> float:
        return sum(float((tensor - 0.3).square().sum()) for tensor in tensors.values())

    received = torch.tensor(participated)
    start = {"a": draw(3), "b": draw(2, 2)}
    moved = {"a": draw(3), "b": draw(2, 2)}
    # A client that never participated still has its initial tensors.
    stack = {n: start[n] + torch.einsum("k,k...->k...", received.double(), moved[n]) for n in start}
    sizes = torch.randint(1, 100, (K,), generator=generator).tolist()
    found = server(
        stack,
        start=start,
        received=participated,
        sizes=sizes,
        fingerprints=draw(4),
        loss=loss,
        round_number=30,
        seed=seed,
    )
    return dataclasses.replace(found, extra=payloads(name, options or {}, found, draw))


def renumbered(old: Server, order: list[int]) -> Server:
    assert old.fingerprints is not None
    return dataclasses.replace(
        old,
        stack={name: tensor[order] for name, tensor in old.stack.items()},
        start={name: tensor[order] for name, tensor in old.start.items()},
        fingerprints=old.fingerprints[order],
        sizes=old.sizes[order],
        received=old.received[order],
        updated=old.updated[order],
        extra={name: tensor[order] for name, tensor in old.extra.items()},
    )


participation = st.lists(st.booleans(), min_size=K, max_size=K).filter(any)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), participated=participation)
def test_rows_are_means_over_clients_that_participated(
    name: str, options: dict, seed: int, participated: list[bool]
) -> None:
    asked = population(seed, participated, name, options)
    matrix = make_method(name, options).mix(asked).matrix
    assert matrix.shape == (K, K)
    assert matrix.dtype == torch.float64
    assert (matrix >= 0).all()
    assert torch.allclose(matrix.sum(1), torch.ones(K, dtype=torch.float64))
    others = matrix - torch.diag(matrix.diagonal())
    assert (others[:, ~asked.received] == 0).all()


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), participated=participation, order=st.permutations(range(K)))
def test_numbering_does_not_matter(
    name: str, options: dict, seed: int, participated: list[bool], order: list[int]
) -> None:
    for key, reason in OWN_RANDOMNESS.items():
        if name == key or options.get(key):
            pytest.skip(reason)
    if name == "clustered-fl" and options:
        participated = [True] * K  # which half of a cluster a client without an update stays in is arbitrary
    method, asked = make_method(name, options), population(seed, participated, name, options)
    mixing, other = method.mix(asked), method.mix(renumbered(asked, order))
    assert torch.allclose(other.matrix, mixing.matrix[order][:, order], atol=1e-9)
    if mixing.revert is not None:
        assert other.revert is not None
        assert torch.equal(other.revert, mixing.revert[order])


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_mixing_does_not_change_the_server(name: str, options: dict) -> None:
    asked, untouched = (population(3, [True, False, True, True, True], name, options) for _ in range(2))
    make_method(name, options).mix(asked)
    for field in ("stack", "start", "extra"):
        for key, tensor in getattr(asked, field).items():
            assert torch.equal(tensor, getattr(untouched, field)[key])
    assert torch.equal(asked.received, untouched.received)
    assert torch.equal(asked.sizes, untouched.sizes)
    assert asked.state == {}


@pytest.mark.parametrize("name", METHODS)
def test_the_state_of_a_method_has_the_same_shapes_in_all_rounds(name: str) -> None:
    options = OPTIONS.get(name, {})
    method, state = make_method(name, options), None
    for round_number in range(3):
        asked = dataclasses.replace(population(round_number, [True] * K, name, options), state=state or {})
        found = method.mix(asked).state
        shapes = {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()}
        if state is not None:
            assert shapes == {key: (tensor.shape, tensor.dtype) for key, tensor in state.items()}
        state = found
