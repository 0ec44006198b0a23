"""Clients in a file: the same rounds as in memory, and no step that touches clients that do not take part."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from factorized_fl.core.disk import DiskStack
from factorized_fl.core.errors import UserError
from factorized_fl.core.stack import ClientStack
from factorized_fl.methods import METHODS
from factorized_fl.results.reading import load_round, round_file
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.population import Population, PopulationServer, RunningSums
from factorized_fl.simulate.rounds import run_round, sampling_of
from factorized_fl.simulate.run import Stopped, run_federation
from tests.tiny import tiny_config, tiny_scenario


def federation(method: str, **settings: Any) -> Federation:
    config = tiny_config(method, **settings)
    return build_federation(config, tiny_scenario(config), torch.device("cpu"))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"dropout": 0.3}),
        ("fedavg", {"stale": "forget", "dropout": 0.3}),
        ("factorized-peers", {}),
        ("factorized-fl", {"optimizer": "adamw", "lr": 1e-3}),
        ("factorized-fl-beta", {"ema": 0.5}),
        ("ditto", {"dropout": 0.3}),
        ("fedavgm", {}),
        ("stand-alone", {}),
    ],
)
def test_rounds_are_those_of_clients_in_memory(method: str, settings: dict[str, Any]) -> None:
    theirs, ours = (federation(method, storage=s, fraction=0.5, rounds=4, **settings) for s in ("memory", "disk"))
    assert isinstance(ours.clients, Population)
    for round_number in range(1, 5):
        wanted, found = (run_round(each, round_number)[0] for each in (theirs, ours))
        for one, other in zip(found, wanted, strict=True):
            assert (one["client"], one["steps"], one["up_bytes"]) == (
                other["client"],
                other["steps"],
                other["up_bytes"],
            )
            assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
            assert one["effective_peers"] == pytest.approx(other["effective_peers"], rel=1e-6)
    for k in theirs.server.received.nonzero().flatten().tolist():
        for name, tensor in theirs.clients.state.client(k).items():
            assert torch.allclose(ours.clients.state.client(k)[name], tensor, rtol=1e-3, atol=1e-5), name


def test_only_participants_have_records() -> None:
    ours = federation("factorized-peers", storage="disk", fraction=0.25)
    records, mixing = run_round(ours, 1)
    (participant,) = {record["client"] for record in records}
    assert isinstance(ours.clients, Population)
    assert ours.clients.awake.nonzero().flatten().tolist() == [participant]
    assert mixing is None
    assert len(ours.tensors["state/all/conv1.conv.parametrizations.weight.original"]) == 1


def test_files_of_a_round_hold_the_participants(tmp_path: Path) -> None:
    config = tiny_config("factorized-peers", storage="disk", fraction=0.5, rounds=2)
    run_federation(config, tmp_path / "run", scenario=tiny_scenario(config))
    mixing = load_round(round_file(tmp_path / "run", "mixing", 2))
    assert set(mixing) == {"clients", "members", "rows"}
    assert mixing["rows"].shape == (2, len(mixing["members"]))
    assert mixing["rows"].sum(1).tolist() == pytest.approx([1, 1])
    trace = load_round(round_file(tmp_path / "run", "traces", 2))
    assert trace["cosine.u"].shape == (2, 2)
    assert trace["clients"].tolist() == mixing["clients"].tolist()


def test_running_sums_are_the_mean_of_all_last_updates() -> None:
    """Also after 20 rounds, while a client's update is not finite, and after its next one."""
    ours = federation("fedavg", storage="disk", fraction=0.5, dropout=0.3, rounds=24)
    name = "conv1.conv.weight"
    for round_number in range(1, 25):
        run_round(ours, round_number)
        known = ours.server.received.nonzero().flatten()
        sizes, sent = ours.scenario.sizes[known], ours.clients.state.common[name][known].double()
        wanted = (sizes @ sent.flatten(1)).view(sent.shape[1:]) / sizes.sum()
        assert isinstance(ours.server, PopulationServer)
        assert ours.server.sums is not None
        found = ours.server.sums.mean(name, float(sizes.sum()))
        assert torch.allclose(found.double(), wanted, atol=1e-6, rtol=0)
    rows, weights = torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), torch.tensor([2.0, 1.0], dtype=torch.float64)
    sums = RunningSums({"w": torch.zeros(2, 2)})
    sums.add("w", rows, weights)
    assert sums.mean("w", 3.0).isnan().all()
    sums.add("w", rows[:1], -weights[:1])
    sums.add("w", torch.tensor([[4.0, 6.0]]), weights[:1])
    assert sums.mean("w", 3.0).tolist() == pytest.approx([10 / 3, 5.0])


def test_means_need_no_record_of_a_client_that_sits_out() -> None:
    ours = federation("fedavg", storage="disk", fraction=0.25)
    run_round(ours, 1)
    (first,) = ours.server.received.nonzero().flatten().tolist()
    round_number = next(n for n in range(2, 9) if sampling_of(ours).draw(n)[0] != [first])
    for stacked in ours.clients.state.common.values():
        if stacked.is_floating_point():
            stacked[first] = torch.nan
    records, mixing = run_round(ours, round_number)
    assert mixing is not None
    (record,) = [record for record in records if record["client"] != first]
    assert math.isfinite(record["train_loss"])


def test_only_the_latest_of_many_clients_are_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorized_fl.simulate.population.LATEST", 1)
    ours = federation("factorized-peers", storage="disk", fraction=0.25, rounds=9)
    last: list[int] = []
    for round_number in range(1, 9):
        participants = sampling_of(ours).draw(round_number)[0]
        mixing = run_round(ours, round_number)[1]
        assert (mixing is None) == (round_number == 1)
        if mixing is not None:
            assert mixing.weights.tensors()["members"].tolist() == sorted({*participants, *last})
        last = participants


@pytest.mark.parametrize(("method", "large"), [("factorized-peers", 2**20), ("ditto", 2**20), ("factorized-fl", 0)])
def test_a_resumed_run_ends_with_the_same_bits(
    method: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorized_fl.core.disk._LARGE", large)

    class Stop:
        def started(self, federation: Federation, done: int) -> None: ...

        def client_done(self, round_number: int, client: int) -> None: ...

        def round_done(self, round_number: int, records: object) -> None:
            if round_number == 2:
                raise Stopped

    config = tiny_config(method, storage="disk", fraction=0.5, rounds=4)
    scenario = tiny_scenario(config)
    whole = run_federation(config, tmp_path / "whole", scenario=scenario)
    with pytest.raises(Stopped):
        run_federation(config, tmp_path / "again", scenario=scenario, observers=[Stop()])
    again = run_federation(config, tmp_path / "again", scenario=scenario, resume=True)
    assert (whole.path / "metrics.jsonl").read_bytes() == (again.path / "metrics.jsonl").read_bytes()
    ends = [RunDirectory(run.path).load_checkpoint() for run in (whole, again)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_run_takes_in_only_the_last_round_if_it_forgets() -> None:
    """Client 0 took part in the first round, clients 1 and 2 in the second: their mean is sent, without client 0."""
    ours = federation("fedavg", stale="forget")
    server = ours.server
    for ks in ((0,), (1, 2)):
        server.begin_updates()
        ours.clients.train(1, ks, ours.engine)
        server.keep(ks, ours.clients.send(ks))
    name = "conv1.conv.weight"
    sent = dict(server.prepare(3, [3], lambda k, tensors: []).items())[name][0]
    own, sizes = ours.clients.state.common[name], ours.scenario.sizes
    assert torch.allclose(sent, (sizes[1] * own[1] + sizes[2] * own[2]).float() / float(sizes[1] + sizes[2]), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "clustered-fl"}, "does not serve clustered-fl"),
        ({"method": "scaffold"}, "clients send more than a model"),
        ({"method": "fedavg", "control": True}, "cannot be combined with control"),
    ],
)
def test_what_a_file_does_not_serve_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        federation(storage="disk", **settings)


def test_a_stack_on_disk_is_the_stack_in_memory() -> None:
    initial = {
        2: {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3), "head": torch.ones(2)},
        3: {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3), "head": torch.ones(3)},
    }
    kinds = [2, 3, 2]
    theirs, ours = ClientStack.of([initial[kind] for kind in kinds]), DiskStack(initial, kinds)
    assert all(torch.equal(t, ours.client(1)[n]) for n, t in theirs.client(1).items())
    ours.wake([1, 2])
    for stack in (theirs, ours):
        stack.client(1)["w"].add_(1)
        stack.client(1)["head"].mul_(5)
        stack.common["w"][[2]] = 7.0
    for k in range(3):
        assert all(torch.equal(t, ours.client(k)[n]) for n, t in theirs.client(k).items())
    ours.release()
    assert ours.common["w"][1].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert initial[3]["head"].tolist() == [1, 1, 1]
    zeros = ours.made(torch.zeros_like, ["w"])
    zeros.wake([0])
    assert zeros.common["w"][[0]].tolist() == [[[0, 0, 0], [0, 0, 0]]]


def test_very_many_clients_lie_on_disk_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorized_fl.simulate.population.MANY", 4)
    assert isinstance(federation("fedavg").clients, Population)
    assert not isinstance(federation("scaffold", storage="memory").clients, Population)
    monkeypatch.setattr("factorized_fl.simulate.population.MANY", 5)
    assert not isinstance(federation("fedavg").clients, Population)
    monkeypatch.setattr("factorized_fl.simulate.population.HEAVY", 10_000)
    assert isinstance(federation("fedavg").clients, Population)
    assert METHODS["clustered-fl"].follows_clients
    assert not isinstance(federation("clustered-fl").clients, Population)
