"""Some clients sit out, some fail half way, the run is interrupted: for every method."""

import pytest
import torch

from factorized_fl.methods import METHODS
from factorized_fl.simulate.rounds import choose, run_round
from tests.tiny import tiny_config, tiny_federation

ROUNDS = 5
SETTINGS = {"rounds": ROUNDS, "fraction": 0.5, "dropout": 0.4, "clients": 6, "seed": 3}
# Settings under which a method's memory changes within five rounds.
OPTIONS = {"clustered-fl": {"eps1": 1e6, "eps2": 0.0, "warm_up": 0}}


def build(method: str):
    return tiny_federation(method, **SETTINGS, options=OPTIONS.get(method, {}))


def copy(federation) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in federation.tensors.items()}


def rows(tensors: dict[str, torch.Tensor], k: int) -> dict[str, torch.Tensor]:
    """Client k's part: of state, momentum and start."""
    own = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        if group in ("state", "momentum"):
            holder, _, _ = rest.partition("/")
            if holder == "all":
                own[name] = tensor[k]
            elif int(holder) == k:
                own[name] = tensor
        elif group == "start":
            own[name] = tensor[k]
    return own


def test_the_draw_has_every_case() -> None:
    """Otherwise the tests below would prove little: drop-outs after the first round, newcomers, full answers."""
    draws = [choose(tiny_config(**SETTINGS), round) for round in range(1, ROUNDS + 1)]
    assert all(len(chosen) == 3 for chosen, _ in draws)
    assert draws[0][1]  # somebody answers in the first round, so there is something to mix from the second on
    assert any(len(clients) < len(chosen) for chosen, clients in draws[1:])
    seen = set(draws[0][1])
    newcomers, failures_of_known = set(), set()
    for chosen, clients in draws[1:]:
        newcomers |= set(clients) - seen
        failures_of_known |= (set(chosen) - set(clients)) & seen
        seen |= set(clients)
    assert newcomers
    assert failures_of_known
    assert sum(len(clients) for _, clients in draws) >= 6


@pytest.mark.parametrize("method", METHODS)
def test_partial_participation(method: str) -> None:
    federation = build(method)
    shapes = None
    checkpoint: dict[str, torch.Tensor] = {}
    for round in range(1, ROUNDS + 1):
        if round == 3:
            checkpoint = copy(federation)
        before = copy(federation)
        chosen, clients = choose(federation.config, round)
        answered = federation.server.received.clone()
        records, mixing = run_round(federation, round)
        by_client = {record["client"]: record for record in records}

        for k in set(range(6)) - set(clients):
            now = rows(federation.tensors, k)
            assert all(torch.equal(tensor, now[name]) for name, tensor in rows(before, k).items())
        for k in clients:
            now = rows(federation.tensors, k)
            changed = {n.partition("/")[0] for n, t in rows(before, k).items() if not torch.equal(t, now[n])}
            assert changed >= {"state", "momentum"}
        expected = answered.clone()
        expected[clients] = True
        assert torch.equal(federation.server.received, expected)

        for k in chosen:
            record = by_client[k]
            paid = mixing is not None
            if mixing is not None and mixing.downloads is not None:
                assert mixing.downloads[k] == answered.sum() - answered[k].long()
                paid = bool(mixing.downloads[k])
            assert (record["down_bytes"] > 0) == (record["down_parameters"] > 0) == paid
            if k in clients:
                assert record["steps"] > 0
                assert (record["up_bytes"] > 0) == bool(federation.shared)
            else:
                assert record["steps"] == record["up_bytes"] == record["up_parameters"] == record["up_formula"] == 0
                assert record["train_loss"] is None
                assert (record["down_formula"] > 0) == bool(federation.shared)

        if mixing is not None:
            found = {name: (tensor.shape, tensor.dtype) for name, tensor in federation.server.state.items()}
            assert shapes in (None, found)
            shapes = found
            assert torch.allclose(mixing.matrix.sum(1), torch.ones(6, dtype=torch.float64))

    resumed = build(method)
    resumed.load(checkpoint)
    for round in range(3, ROUNDS + 1):
        run_round(resumed, round)
    assert resumed.tensors.keys() == federation.tensors.keys()
    assert all(torch.equal(tensor, resumed.tensors[name]) for name, tensor in federation.tensors.items())


@pytest.mark.parametrize("method", ["clustered-fl", "fedfomo"])
def test_a_methods_memory_belongs_to_the_checkpoint(method: str) -> None:
    federation = build(method)
    for round in range(1, ROUNDS + 1):
        run_round(federation, round)
    assert federation.server.state
    kept = copy(federation)
    resumed = build(method)
    resumed.load(kept)
    for name, tensor in federation.server.state.items():
        assert torch.equal(resumed.method_state[name], tensor)
    blank = {name: tensor for name, tensor in kept.items() if not name.startswith("method/")}
    resumed.load(blank)
    assert resumed.method_state == {}


def test_a_round_in_which_nobody_answers_changes_nothing() -> None:
    federation = tiny_federation("factorized-fl", dropout=0.95, rounds=9)
    silent = [round for round in range(1, 9) if not choose(federation.config, round)[1]]
    assert silent
    run_round(tiny := tiny_federation("factorized-fl", dropout=0.0), 1)
    federation.load(tiny.tensors)
    before = copy(federation)
    records, mixing = run_round(federation, silent[0])
    assert mixing is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.tensors.items())
    assert [record["accuracy"] for record in records] == [None] * 4
    assert all(record["down_bytes"] > 0 and record["up_bytes"] == 0 for record in records)
