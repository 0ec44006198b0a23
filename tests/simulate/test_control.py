"""The control: the same run in which every client is a federation of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factorized_fl.methods import METHODS
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import Stopped, run_federation
from tests.tiny import tiny_config, tiny_federation, tiny_scenario

ROUNDS = 3


def trained(federation: Federation, rounds: int = ROUNDS) -> Federation:
    for round_number in range(1, rounds + 1):
        run_round(federation, round_number)
    return federation


@pytest.mark.parametrize("method", METHODS)
def test_the_control_is_as_many_federations_of_one_client(method: str) -> None:
    together = trained(tiny_federation(method, rounds=ROUNDS, control=True))
    config = tiny_config(method, rounds=ROUNDS)
    scenario = tiny_scenario(config)
    for k in (1, 3):
        only = replace(scenario, clients=(replace(scenario.clients[k], seat=k),))
        apart = trained(build_federation(replace(config, clients=1), only, torch.device("cpu")))
        found, wanted = (f.clients.state.client(at) for f, at in ((together, k), (apart, 0)))
        for name in wanted:
            assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_one_round_and_its_control_are_equal(method: str) -> None:
    ours, control = (trained(tiny_federation(method, rounds=1, control=on), 1) for on in (False, True))
    for name, tensor in ours.clients.tensors.items():
        assert torch.equal(tensor, control.clients.tensors[name]), name


def test_the_control_of_fedavg_is_stand_alone_and_fedavg_is_not() -> None:
    alone, control, fedavg = (
        trained(tiny_federation(method, rounds=ROUNDS, control=on)).clients.state.common
        for method, on in (("stand-alone", False), ("fedavg", True), ("fedavg", False))
    )
    assert all(torch.equal(alone[name], control[name]) for name in alone)
    assert not all(torch.equal(alone[name], fedavg[name]) for name in alone)


def test_a_control_has_no_traffic_and_no_mixing() -> None:
    records, mixing = run_round(trained(tiny_federation("fedavg", rounds=ROUNDS, control=True), 2), 3)
    assert mixing is None
    assert [record["up_bytes"] + record["down_formula"] for record in records] == [0] * 4


class StopAfter:
    def started(self, federation: Federation, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: object) -> None:
        if round_number == 2:
            raise Stopped


@pytest.mark.parametrize("method", ["clustered-fl", "factorized-peers", "factorized-fl-beta", "fedfomo"])
def test_a_resumed_control_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    config = tiny_config(method, rounds=4, control=True, fraction=0.5, dropout=0.2)
    scenario = tiny_scenario(config)
    whole = run_federation(config, tmp_path / "whole", scenario=scenario)
    with pytest.raises(Stopped):
        run_federation(config, tmp_path / "parts", scenario=scenario, observers=[StopAfter()])
    parts = run_federation(config, tmp_path / "parts", scenario=scenario, resume=True)
    assert whole.metrics() == parts.metrics()
    wanted = whole.load_checkpoint()
    for name, tensor in parts.load_checkpoint().items():
        assert torch.equal(tensor, wanted[name]), name
