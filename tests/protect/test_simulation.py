"""An encrypted simulation equals the plain one, and its server holds nothing that it could read."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import CIPHERTEXTS
from factorized_fl.core.mixing import weighted_mean
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Mixing, Server
from factorized_fl.methods import METHODS, encryptable
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.protect import ckks
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.simulate.test_run import StopIn, contents
from tests.tiny import tiny_config, tiny_federation

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "pfedpara": {"fraction": 0.5, "dropout": 0.3, "rounds": 5},
    "factorized-fl": {"options": {"match": "statistics"}, "min_peers": 0.5},
    "factorized-peers": {"fraction": 0.75, "rounds": 4},
}


@pytest.mark.parametrize("method", CASES)
def test_an_encrypted_run_equals_the_plain_run(method: str) -> None:
    calm: dict[str, Any] = {"lr": 0.01, **CASES[method]}  # training amplifies the rounding of 32-bit numbers
    plain, encrypted = tiny_federation(method, **calm), tiny_federation(method, protect="encrypt", **calm)
    for round_number in range(1, plain.config.rounds + 1):
        wanted, mixing = run_round(plain, round_number)
        got, same = run_round(encrypted, round_number)
        assert (mixing is None) == (same is None)
        if mixing is not None and same is not None:
            torch.testing.assert_close(mixing.matrix, same.matrix, rtol=0, atol=1e-12)
        for one, two in zip(wanted, got, strict=True):
            assert {one[name] for name in ("round", "client", "steps")} == {
                two[name] for name in ("round", "client", "steps")
            }
            assert one["effective_peers"] == pytest.approx(two["effective_peers"])
            assert one["accuracy"] == two["accuracy"]
            if one["loss"] is not None:
                assert one["loss"] == pytest.approx(two["loss"], rel=1e-6)
    for name, tensor in plain.clients.state.common.items():
        torch.testing.assert_close(tensor, encrypted.clients.state.common[name], rtol=1e-5, atol=1e-6, msg=name)


def test_encryption_itself_changes_less_than_a_billionth_of_a_loss() -> None:
    """In 64 bits the rounding that training magnifies is out of the way."""
    torch.set_default_dtype(torch.float64)
    try:
        options: dict[str, Any] = {"options": {"match": "statistics"}, "rounds": 3}
        plain, encrypted = (tiny_federation("factorized-fl", protect=each, **options) for each in ("none", "encrypt"))
        for round_number in (1, 2, 3):
            wanted, got = (run_round(federation, round_number)[0] for federation in (plain, encrypted))
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(wanted, got, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-9)
        assert one["accuracy"] == two["accuracy"]
    assert [one["loss"] for one in wanted] != [two["loss"] for two in got]  # the sums were encrypted


def test_the_server_has_no_plain_tensor() -> None:
    """What a method sees has names and shapes only, and no tensor of the server holds a client's numbers."""
    federation = tiny_federation("fedavg", protect="encrypt")
    run_round(federation, 1)
    run_round(federation, 2)
    server = federation.server
    assert isinstance(server, ServerState)
    assert {tensor.device.type for tensor in server.seen.values()} == {"meta"}
    assert list(server.stack) == [CIPHERTEXTS]
    held = b"".join(tensor.numpy().tobytes() for tensor in server.tensors.values())
    for name in federation.shared:
        for k in range(4):
            needle = federation.clients.state.common[name][k].flatten()[:4]
            assert needle.numpy().tobytes() not in held
            assert needle.double().numpy().tobytes() not in held


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Claims not to read tensors, and reads them."""

    name = "peeking"

    @property
    def reads_tensors(self) -> bool:
        return False

    def mix(self, server: Server) -> Mixing:
        norms = torch.cat([stacked.flatten(1) for stacked in server.stack.values()], 1).norm(dim=1)
        return Mixing(weighted_mean(norms.double(), server.received))


def test_a_method_that_reads_tensors_after_all_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "peeking", Peeking)
    federation = tiny_federation("peeking", protect="encrypt")
    run_round(federation, 1)
    with pytest.raises((NotImplementedError, RuntimeError)):
        run_round(federation, 2)


def test_methods_that_read_tensors_are_refused_with_those_that_work() -> None:
    sentence = r"^The weights of {} are computed from the shared tensors, .* Methods that work: stand-alone, fedavg, "
    for method in ("fedfomo", "clustered-fl", "factorized-fl", "factorized-fl-beta"):
        with pytest.raises(UserError, match=sentence.format(method)):
            tiny_config(method, protect="encrypt")
    for entry in encryptable():
        name, _, option = entry.partition(" with ")
        options = dict([option.split("=")]) if option else {}
        tiny_config(name, protect="encrypt", options=options)
    refused = {
        "fedfomo",
        "clustered-fl",
        "fedcac",
        "pfedme",
        "fedap",
        "fedavgm",
        "scaffold",
        "fedamp",
        "ifca",
        "fedproto",
    }
    assert {entry.split(" with ")[0] for entry in encryptable()} == METHODS.keys() - refused


@pytest.mark.parametrize("entry", encryptable())
def test_every_method_that_claims_to_work_mixes_without_tensors(entry: str) -> None:
    """The second round computes weights from what the server has; no client needs to train for that."""
    name, _, option = entry.partition(" with ")
    federation = tiny_federation(name, protect="encrypt", options=dict([option.split("=")]) if option else {})
    server = federation.server
    assert isinstance(server, ServerState)
    server.received[:] = server.updated[:] = True
    mixing = server.prepare(2, range(4), lambda k, tensors: []).mixing
    assert (mixing is None) == (name == "stand-alone")


def test_a_subclass_of_fedavg_with_its_own_mix_counts_as_reading() -> None:
    class Own(FedAvg):
        def mix(self, server: Server) -> Mixing:
            return super().mix(server)

    assert not FedAvg().reads_tensors
    assert Own().reads_tensors


def test_oracles_extra_payloads_and_several_weightings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="oracle = 'groups' reveals"):
        tiny_config("fedavg", protect="encrypt", oracle="groups")
    with pytest.raises(UserError, match="align = 'statistics' sends tensors that are not encrypted"):
        tiny_config("fedavg", protect="encrypt", align="statistics")
    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "extra_up", lambda self, initial, shared, roles: {"more": torch.zeros(1)})
        with pytest.raises(UserError, match="fedavg sends further payloads"):
            tiny_federation("fedavg", protect="encrypt")
    federation = tiny_federation("factorized-peers", protect="encrypt", options={"general": 1})
    run_round(federation, 1)
    with pytest.raises(UserError, match="must be weights alone, the same for all tensors"):
        run_round(federation, 2)


def test_a_diverged_client_ruins_those_that_give_it_weight_as_without_encryption() -> None:
    ruined = []
    for protect in ("none", "encrypt"):
        federation = tiny_federation("factorized-fl", options={"match": "statistics", "tau": 1.0}, protect=protect)
        run_round(federation, 1)
        federation.clients.state.common[next(iter(sorted(federation.shared)))][2] = torch.nan
        if federation.sealer is not None:  # the server has what the client sends
            update = federation.sealer.sealed(1, [2], federation.clients.send([2]))
            federation.server.keep([2], update)
        ruined.append([record["loss"] is None for record in run_round(federation, 2)[0]])
    assert ruined[0] == ruined[1]
    assert ruined[0][:3] == [False, False, True]  # client 4 is in the domain of client 3


def test_bytes_and_seconds_of_encryption_are_recorded(images: Path, tmp_path: Path) -> None:
    config = tiny_config("factorized-peers", protect="encrypt", rounds=2)
    directory = run_federation(config, tmp_path / "run", data=images)
    first, second = directory.metrics()[0], directory.metrics()[-1]
    assert first["up_roles"].keys() == {"encrypted", "fingerprint"}
    federation = tiny_federation("factorized-peers", protect="encrypt")
    assert federation.sealer is not None
    count = federation.sealer.layout.ciphertexts
    assert count * ckks.UP < first["up_roles"]["encrypted"] < first["up_bytes"] < count * ckks.UP + 1_000
    assert first["down_bytes"] == 0
    assert count * ckks.DOWN < second["down_bytes"] < count * ckks.DOWN + 1_000
    timing = directory.timing()
    assert all(line["encrypt_seconds"] > 0 for line in timing)
    assert timing[0]["decrypt_seconds"] == timing[0]["mix_seconds"] == 0
    assert timing[1]["decrypt_seconds"] > 0
    assert timing[1]["mix_seconds"] > 0


def test_encrypted_runs_of_one_seed_are_equal_also_if_interrupted(images: Path, tmp_path: Path) -> None:
    config = tiny_config("fedavg", protect="encrypt", fraction=0.75)
    run_federation(config, tmp_path / "a", data=images)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "b", data=images, observers=[StopIn(2)])
    run_federation(config, tmp_path / "b", data=images, resume=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


KILLED = """
import os, signal, sys
from pathlib import Path
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config

class Kill:
    def started(self, federation, done): ...
    def client_done(self, round_number, client):
        if (round_number, client) == (2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    def round_done(self, round_number, records): ...

run_federation(tiny_config("fedavg", protect="encrypt"), Path(sys.argv[1]), data=Path(sys.argv[2]), observers=[Kill()])
"""


def test_a_killed_encrypted_run_goes_on_to_the_same_end(images: Path, tmp_path: Path) -> None:
    config = tiny_config("fedavg", protect="encrypt")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(images)]
    assert (
        subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}).returncode
        == -signal.SIGKILL
    )
    assert RunDirectory(tmp_path / "killed").checkpoint_round() == 1
    run_federation(config, tmp_path / "killed", data=images, resume=True)
    whole = run_federation(config, tmp_path / "whole", data=images)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert json.loads((whole.path / "summary.json").read_text())["up_bytes"] > 0


def test_the_control_of_an_encrypted_run_has_nothing_to_encrypt() -> None:
    federation = tiny_federation("fedavg", protect="encrypt", control=True)
    assert federation.sealer is None
    records, _ = run_round(federation, 1)
    assert all(record["up_bytes"] == 0 for record in records)
    assert tiny_federation("stand-alone", protect="encrypt").sealer is None
