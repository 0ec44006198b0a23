"""Oracles: federations inside the true domains, with true labels, and training on pooled images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from factorized_fl.core.errors import UserError
from factorized_fl.data.scenarios import pool_domains
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import describe_clients
from factorized_fl.silo.agreement import read_agreement
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import Stopped, run_federation
from factorized_fl.simulate.scenario import scenario_for
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set

ROUNDS = 3
CPU = torch.device("cpu")


def trained(federation: Federation, rounds: int = ROUNDS) -> Federation:
    for round_number in range(1, rounds + 1):
        run_round(federation, round_number)
    return federation


def only(scenario, ks):
    """The scenario of some clients, which keep their streams of random numbers."""
    return replace(scenario, clients=tuple(replace(scenario.clients[k], seat=k) for k in ks))


def equal(one: Federation, places, other: Federation) -> None:
    for at, k in enumerate(places):
        found, wanted = one.clients.state.client(k), other.clients.state.client(at)
        for name in wanted:
            assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.needs_agreeing_labels])
def test_true_groups_are_as_many_federations(method: str) -> None:
    together = trained(tiny_federation(method, rounds=ROUNDS, oracle="groups"))
    config = tiny_config(method, rounds=ROUNDS)
    scenario = tiny_scenario(config)
    for ks in ((0, 1), (2, 3)):
        apart = build_federation(replace(config, clients=2), only(scenario, ks), CPU)
        equal(together, ks, trained(apart))


def test_true_labels_share_the_classifier_inside_the_domain() -> None:
    domains = (tiny_set("bars", 3), tiny_set("lines", 3, seed=1))
    config = tiny_config("fedavg", rounds=ROUNDS, oracle="aligned")
    scenario = tiny_scenario(config, domains)
    together = trained(build_federation(config, scenario, CPU))
    heads = together.clients.state.common["head.weight"]
    assert "head.weight" in together.shared
    assert not torch.equal(heads[0], heads[2])
    plain = tiny_config("fedavg", rounds=ROUNDS, permuted=False)
    agreeing = tiny_scenario(plain, domains)
    assert not agreeing.labels_agree
    for ks in ((0, 1), (2, 3)):
        apart = replace(only(agreeing, ks), labels_agree=True)
        equal(together, ks, trained(build_federation(replace(plain, clients=2), apart, CPU)))


def test_true_labels_change_no_mark_of_the_images_and_name_classes_in_their_order() -> None:
    domains = (tiny_set("bars", 3), tiny_set("lines", 3, seed=1))
    aligned, off = (
        describe_clients(scenario_for(config.build_method(), config, tiny_scenario(config, domains)))
        for config in (tiny_config("fedavg", oracle="aligned"), tiny_config("fedavg"))
    )
    assert [entry["images"] for entry in aligned] == [entry["images"] for entry in off]
    assert [entry["classes"] for entry in aligned[:2]] == [["bars-0", "bars-1", "bars-2"]] * 2
    assert off[0]["classes"] != off[1]["classes"]


def test_true_labels_need_equal_numbers_of_classes() -> None:
    with pytest.raises(UserError, match="'bars' has 3 and 'lines' has 5: use oracle = 'groups'"):
        tiny_federation("fedavg", oracle="aligned")


def test_centralised_training_equals_plain_training_on_the_pooled_images() -> None:
    federation = tiny_federation("fedavg", rounds=2, oracle="centralised", momentum=0.5, weight_decay=0.01)
    scenario, config = tiny_scenario(federation.config), federation.config
    assert [client.name for client in federation.scenario.clients] == ["bars", "lines"]
    pool = federation.scenario.clients[1]
    assert set(pool.train.tolist()) == {at for client in scenario.clients[2:] for at in client.train.tolist()}
    assert torch.equal(pool.test, scenario.clients[2].test)
    model = federation.engine.models[5]
    own = {name: tensor.clone() for name, tensor in federation.clients.state.client(1).items()}
    trained(federation, 2)
    model.load_state_dict(own)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.5, weight_decay=0.01)
    for round_number in (1, 2):
        for batch in federation.engine.batches(round_number, 1):
            optimiser.zero_grad()
            cross_entropy(model(batch.images), batch.labels).backward()
            optimiser.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(federation.clients.state.client(1)[name], tensor, rtol=1e-5, atol=1e-6)


def test_pooled_clients_number_classes_in_the_order_of_their_domain() -> None:
    scenario = tiny_scenario(tiny_config())
    assert pool_domains(scenario).clients[0].classes == ("bars-0", "bars-1", "bars-2")


def test_traffic_and_mixing_of_oracles() -> None:
    def last_round(**settings):
        return run_round(trained(tiny_federation("fedavg", rounds=ROUNDS, **settings), 2), 3)

    records, mixing = last_round(oracle="groups")
    plain, _ = last_round()
    assert [record["up_bytes"] for record in records] == [record["up_bytes"] for record in plain]
    assert [record["down_formula"] for record in records] == [record["down_formula"] for record in plain]
    assert torch.equal(mixing.matrix != 0, torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)) != 0)
    records, mixing = last_round(oracle="centralised")
    assert mixing is None
    assert [record["up_bytes"] + record["down_formula"] for record in records] == [0, 0]


@pytest.mark.parametrize("setting", [{"oracle": "groups"}, {"control": True}])
def test_an_update_waits_for_the_next_round_in_which_its_server_is_asked(setting, monkeypatch) -> None:
    """FedAvgM steps along updates of the round before; a round without its clients must not lose them."""
    federation = tiny_federation("fedavg", rounds=3, fraction=0.5, **setting)
    server = federation.server
    server.prepare(1, [0, 1], lambda k, tensors: [])
    server.begin_updates()
    server.keep([0, 1], [(n, t[[0, 1]]) for n, t in federation.clients.state.common.items() if n in federation.shared])
    server.prepare(2, [2, 3], lambda k, tensors: [])
    server.begin_updates()
    assert torch.cat([each.updated for each in server.servers]).tolist() == [True, True, False, False]
    server.prepare(3, [0, 3], lambda k, tensors: [])
    server.begin_updates()
    assert not server.servers[0].updated.any()


class StopAfter:
    def started(self, federation: Federation, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None: ...

    def round_done(self, round_number: int, records: object) -> None:
        if round_number == 2:
            raise Stopped


@pytest.mark.parametrize("oracle", ["groups", "centralised"])
@pytest.mark.parametrize("method", ["factorized-peers", "fedfomo"])
def test_a_resumed_oracle_ends_with_the_same_bits(method: str, oracle: str, tmp_path: Path) -> None:
    config = tiny_config(method, rounds=4, oracle=oracle, fraction=0.5, dropout=0.2)
    scenario = tiny_scenario(config)
    whole = run_federation(config, tmp_path / "whole", scenario=scenario)
    with pytest.raises(Stopped):
        run_federation(config, tmp_path / "parts", scenario=scenario, observers=[StopAfter()])
    parts = run_federation(config, tmp_path / "parts", scenario=scenario, resume=True)
    assert whole.metrics() == parts.metrics()
    wanted = whole.load_checkpoint()
    for name, tensor in parts.load_checkpoint().items():
        assert torch.equal(tensor, wanted[name]), name


def test_an_oracle_and_a_control_exclude_each_other() -> None:
    with pytest.raises(UserError, match="has no effect with control = true"):
        tiny_config("fedavg", oracle="groups", control=True)


def test_organisations_cannot_use_an_oracle(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('name = "x"\nimage_size = 8\noracle = "groups"\n')
    with pytest.raises(UserError, match="sets oracle, which needs the images and labels of all sites"):
        read_agreement(path)
