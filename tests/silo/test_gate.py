"""The gate closes completely or the party does not start: FLARE's private names may change with its version."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import supervise
from factorized_fl.silo.agreement import write_kit
from factorized_fl.silo.coordinator import Coordinator
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.transport import FINAL, CannotContinue
from tests.silo.parties import kits_of, trio_config

pytest.importorskip("nvflare", reason="FLARE is not installed")
from factorized_fl.silo.transport.flare import gate, process, setup

NAMES = [(owner, name) for owner, name in gate._PRIVATE]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """FLARE as it was, after the test; the gate changes it in this process."""
    for owner, name in NAMES:
        value = getattr(owner, name)
        monkeypatch.setattr(owner, name, type(value)(value) if isinstance(value, list | dict) else value)
    return monkeypatch


def state() -> list[str]:
    return [f"{getattr(owner, name, 'missing')}" for owner, name in NAMES]


@pytest.mark.parametrize("missing", range(len(NAMES)))
def test_a_missing_name_leaves_flare_unchanged_and_says_which_version_is_expected(
    missing: int, restored: pytest.MonkeyPatch
) -> None:
    owner, name = NAMES[missing]
    restored.delattr(owner, name)
    before = state()
    with pytest.raises(UserError, match=f'differs inside from "nvflare>=2.9,<2.10" .*{name}.*pip install "nvflare>=2'):
        process.adapt_flare()
    assert state() == before


def test_grpc_options_without_a_limit_are_refused(restored: pytest.MonkeyPatch) -> None:
    restored.setattr(gate.grpc_driver, "GRPC_DEFAULT_OPTIONS", [("grpc.keepalive_time_ms", 1)])
    with pytest.raises(UserError, match="GRPC_DEFAULT_OPTIONS has no message_length"):
        process.adapt_flare()


def test_a_module_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "factorized_fl.silo.transport.flare.gate")
    monkeypatch.setitem(sys.modules, "nvflare.fuel.f3.streaming.byte_receiver", None)
    with pytest.raises(UserError, match="cannot be used safely"):
        process.adapt_flare()


def test_the_gate_closes_with_the_installed_version(restored: pytest.MonkeyPatch) -> None:
    receive = gate.CoreCell.process_message
    process.adapt_flare()
    assert gate.CoreCell.process_message is not receive
    assert gate.ClientRequestProcessors.request_processors == []
    for driver in (gate.grpc_driver, gate.aio_grpc_driver):
        assert {value for name, value in driver.GRPC_DEFAULT_OPTIONS if "length" in name} == {gate.LARGEST_FRAME}


def test_a_party_whose_gate_does_not_close_runs_no_flare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, with a private name removed before: it ends at once, and is not started again."""
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    code = (
        "import sys; from pathlib import Path; from nvflare.fuel.f3.cellnet.core_cell import CoreCell\n"
        "del CoreCell._create_internal_listener\n"
        "from factorized_fl.silo.agreement import read_kit; from factorized_fl.silo.transport.flare import process\n"
        "process.run_party(read_kit(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(kit.path)], capture_output=True, timeout=60)
    assert done.returncode == FINAL
    assert "CoreCell has no _create_internal_listener" in journal_path(kit).read_text()
    monkeypatch.setattr(supervise, "check_before_start", lambda kit: None)
    monkeypatch.setattr(setup, "prepare", lambda kit: None)
    monkeypatch.setattr(setup, "command", lambda kit: ["-c", code, str(kit.path)])
    with pytest.raises(UserError, match=r"aster has stopped and would stop again: FLARE 2\.9"):
        supervise.supervise(kit)


def test_a_coordinator_with_an_invalid_configuration_is_not_started_again(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())[COORDINATOR]
    write_kit(kit)
    text = (kit.path / "federation.toml").read_text()
    (kit.path / "federation.toml").write_text(text.replace("rounds = 3", "rounds = 0"))
    command = [sys.executable, "-P", "-m", "factorized_fl.silo.transport.flare.process", str(kit.path)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == FINAL, done.stderr
    assert "Error: rounds = 0 must be at least 1" in journal_path(kit).read_text()
    assert "must be at least 1" in json.loads(kit.status.read_text())["note"]


def test_a_coordinator_whose_agreement_changed_after_the_start_is_not_started_again(tmp_path: Path) -> None:
    """With another number of rounds than its run, it would fail in the same way each time."""
    kit = kits_of(tmp_path, trio_config())[COORDINATOR]
    RunDirectory(kit.run).path.mkdir()
    (kit.run / "config.toml").write_bytes(trio_config(rounds=5).to_toml().encode())
    coordinator = Coordinator(kit, Mailbox(kit.agreement.id, kit.agreement.sites), Journal(kit))
    with pytest.raises(CannotContinue, match="rounds was 5, now 3"):
        coordinator.run()
