"""Every method with partial participation, clients that drop out, and a run that is resumed."""

import pytest
import torch

from factorized_fl.methods import METHODS
from factorized_fl.simulate.rounds import run_round, sampling_of
from tests.tiny import tiny_federation

ROUNDS = 5
SETTINGS = {"rounds": ROUNDS, "fraction": 0.5, "dropout": 0.4, "clients": 6, "seed": 3}
# Settings under which the state of a method changes within five rounds.
OPTIONS = {"clustered-fl": {"rule": "norms", "eps1": 1e6, "eps2": 0.0, "warm_up": 0}}


def build(method: str):
    return tiny_federation(method, **SETTINGS, options=OPTIONS.get(method, {}))


def copy(federation) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in federation.tensors.items()}


def rows(tensors: dict[str, torch.Tensor], k: int) -> dict[str, torch.Tensor]:
    """The part of client k in state, momentum and start."""
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


def test_the_samples_have_every_case() -> None:
    """The tests below need clients that drop out after the first round, new clients, and rounds without dropout."""
    sampling = sampling_of(build("fedavg"))
    draws = [sampling.draw(round_number) for round_number in range(1, ROUNDS + 1)]
    assert all(len(sampled) == 3 for sampled, _ in draws)
    assert draws[0][1]  # there is an update in the first round, so that the second has a mixing
    assert any(len(clients) < len(sampled) for sampled, clients in draws[1:])
    seen = set(draws[0][1])
    new_clients, failures_of_known = set(), set()
    for sampled, clients in draws[1:]:
        new_clients |= set(clients) - seen
        failures_of_known |= (set(sampled) - set(clients)) & seen
        seen |= set(clients)
    assert new_clients
    assert failures_of_known
    assert sum(len(clients) for _, clients in draws) >= 6


@pytest.mark.parametrize("method", METHODS)
def test_partial_participation(method: str) -> None:
    federation = build(method)
    shapes = None
    checkpoint: dict[str, torch.Tensor] = {}
    for round_number in range(1, ROUNDS + 1):
        if round_number == 3:
            checkpoint = copy(federation)
        before = copy(federation)
        sampled, clients = sampling_of(federation).draw(round_number)
        received = federation.server.received.clone()
        records, mixing = run_round(federation, round_number)
        by_client = {record["client"]: record for record in records}

        for k in set(range(6)) - set(clients):
            now = rows(federation.tensors, k)
            assert all(torch.equal(tensor, now[name]) for name, tensor in rows(before, k).items())
        for k in clients:
            now = rows(federation.tensors, k)
            changed = {n.partition("/")[0] for n, t in rows(before, k).items() if not torch.equal(t, now[n])}
            assert changed >= {"state", "momentum"}
        expected = received.clone()
        expected[clients] = True
        assert torch.equal(federation.server.received, expected)

        for k in sampled:
            record = by_client[k]
            paid = mixing is not None and method != "stand-alone"
            if mixing is not None and mixing.downloads is not None:
                assert mixing.downloads[k] == received.sum() - received[k].long()
                paid = bool(mixing.downloads[k])
            assert (record["down_bytes"] > 0) == (record["down_parameters"] > 0) == paid
            if k in clients:
                assert record["steps"] > 0
                assert (record["up_bytes"] > 0) == (method != "stand-alone")
            else:
                assert record["steps"] == record["up_bytes"] == record["up_parameters"] == record["up_formula"] == 0
                assert record["train_loss"] is None
                assert (record["down_formula"] > 0) == (method != "stand-alone")

        if mixing is not None:
            found = {name: (tensor.shape, tensor.dtype) for name, tensor in federation.server.state.items()}
            assert shapes in (None, found)
            shapes = found
            assert torch.allclose(mixing.matrix.sum(1), torch.ones(6, dtype=torch.float64))

    resumed = build(method)
    resumed.load(checkpoint)
    for round_number in range(3, ROUNDS + 1):
        run_round(resumed, round_number)
    assert resumed.tensors.keys() == federation.tensors.keys()
    assert all(torch.equal(tensor, resumed.tensors[name]) for name, tensor in federation.tensors.items())


@pytest.mark.parametrize("method", ["clustered-fl", "fedfomo"])
def test_a_checkpoint_holds_the_state_of_the_method(method: str) -> None:
    federation = build(method)
    for round_number in range(1, ROUNDS + 1):
        run_round(federation, round_number)
    assert federation.server.state
    kept = copy(federation)
    resumed = build(method)
    resumed.load(kept)
    for name, tensor in federation.server.state.items():
        assert torch.equal(resumed.server.state[name], tensor)
    blank = {name: tensor for name, tensor in kept.items() if not name.startswith("method/")}
    resumed.load(blank)
    assert resumed.server.state == {}


def test_a_round_in_which_all_clients_drop_out_changes_no_tensors() -> None:
    federation = tiny_federation("factorized-fl", dropout=0.95, rounds=9)
    silent = [round_number for round_number in range(1, 9) if not sampling_of(federation).draw(round_number)[1]]
    assert silent
    run_round(tiny := tiny_federation("factorized-fl", dropout=0.0), 1)
    federation.load(tiny.tensors)
    before = copy(federation)
    records, mixing = run_round(federation, silent[0])
    assert mixing is not None
    assert before.pop("updated").all()
    after = federation.tensors
    assert not after.pop("updated").any()  # no client sent an update in the last round
    assert after.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert [record["accuracy"] for record in records] == [None] * 4
    assert all(record["down_bytes"] > 0 and record["up_bytes"] == 0 for record in records)
