"""Differential privacy between organisations: equal to one process, with secret noise; spending outlives crashes."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from factorized_fl.config import Config, from_table
from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import NOISE_SEED, SPENDING
from factorized_fl.silo.own_part import noise_seed_of
from factorized_fl.silo.status import status_lines, write_status
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.scenario import build_scenario_of
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, TABLE, kits_of, make_sites, write_trio


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(autouse=True)
def any_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties accept a network that no installed package declares."""
    for module in ("own_part", "coordinator"):
        monkeypatch.setattr(f"factorized_fl.silo.{module}.check_model", lambda kit: None)
    monkeypatch.setattr(import_module("factorized_fl.export.export"), "write_onnx", lambda *args: False)  # slow


def private_trio(**settings: Any) -> Config:
    table = {name: value for name, value in TABLE.items() if name != "width"}
    table |= {"model": "tests.own.nets:GroupNormCNN", "privacy_epsilon": 8.0, "rounds": 2, "method": "factorized-peers"}
    return from_table({**table, "dataset": "folder", "clients": 3, **settings})


def test_sites_with_a_budget_equal_one_process_and_report_what_they_spent(data: Path, tmp_path: Path) -> None:
    config = private_trio()
    kits = kits_of(tmp_path, config)
    for site in NAMES:  # one process draws all noise from the seed that all know
        (kits[site].path / NOISE_SEED).write_text(str(config.seed))
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"))
    for round_number in (1, 2):
        wanted, _ = run_round(federation, round_number)
    for k, site in enumerate(sites.values()):
        own, theirs = site.federation.clients.state.client(0), federation.clients.state.client(k)
        for name in own:
            torch.testing.assert_close(own[name], theirs[name], rtol=0, atol=1e-6, msg=name)
    known = RunDirectory(kits[COORDINATOR].run).metrics()[-3:]
    assert [line["epsilon"] for line in known] == [line["epsilon"] for line in wanted]
    assert all(line["train_loss"] is None for line in known)
    for site in (COORDINATOR, "aster"):
        write_status(kits[site], "training", {"round": 2, "rounds": 2, "sites": []})
        assert any("of 8 (delta 1e-05)" in line for line in status_lines(kits[site]))
    exported = sites["aster"].finish(alone=False)
    assert exported is not None
    assert exported.epsilon == wanted[0]["epsilon"]
    assert "Training kept epsilon" in (kits["aster"].model / "README.md").read_text()


def test_each_site_draws_its_own_secret_that_is_not_in_the_agreement(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, private_trio())
    secrets = {noise_seed_of(kits[site]) for site in NAMES}
    assert len(secrets) == 3
    assert all(secret.bit_length() > 200 for secret in secrets)
    assert all((kits[site].path / NOISE_SEED).stat().st_mode & 0o77 == 0 for site in NAMES)
    text = json.dumps([dict(kits["aster"].table), str(kits["aster"].agreement)])
    assert not any(str(secret) in text for secret in secrets)


def test_what_was_spent_outlives_a_lost_checkpoint(data: Path, tmp_path: Path) -> None:
    """A round that is trained again after a crash counts twice, and never with the same noise."""
    kits = kits_of(tmp_path, private_trio(method="fedavg"))
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    before = sites["aster"].federation.budget
    assert before is not None
    spent = json.loads((kits["aster"].path / SPENDING).read_text())
    assert spent == {"taken": int(before.taken[0]), "noise": float(before.noise[0])}
    for path in (kits["aster"].run / "checkpoint.safetensors", RunDirectory(kits["aster"].run).previous_path):
        path.write_bytes(b"damaged")
    again = make_sites(kits, data)["aster"].federation.budget
    assert again is not None
    assert int(again.taken[0]) == spent["taken"]
    (kits["aster"].path / SPENDING).write_text("{}")
    with pytest.raises(UserError, match="the spent budget is unknown"):
        make_sites(kits, data)
