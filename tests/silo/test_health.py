"""Health checks of a service manager: exit code 0 where the party runs and reports, else 1."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from factorized_fl.cli import app
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import status
from factorized_fl.silo.agreement import write_kit
from factorized_fl.silo.status import write_status
from factorized_fl.silo.supervise import exclusive_use
from tests.silo.parties import kits_of, trio_config


def health(kit: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["federation", "health", str(kit), *options])
    return done.exit_code, done.output.strip()


def test_health_and_readiness_of_both_kinds_of_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kits = kits_of(tmp_path, trio_config())
    for kit in kits.values():
        write_kit(kit)
    aster, coordinator = kits["aster"], kits[COORDINATOR]
    write_status(aster, "waiting for the coordinator")
    assert health(aster.path) == (1, "aster: it does not run")
    with exclusive_use(aster), exclusive_use(coordinator):
        assert health(coordinator.path) == (1, "coordinator: it has not reported yet")
        assert health(aster.path) == health(aster.path, "--ready") == (0, "aster: in order")
        write_status(aster, "at work on round-3")
        assert health(aster.path, "--ready")[0] == 0
        write_status(aster, "the coordinator is out of reach")
        assert health(aster.path)[0] == 0
        assert health(aster.path, "--ready") == (1, "aster: the coordinator is out of reach")
        write_status(coordinator, "waiting for answers", {"round": 1, "rounds": 3, "sites": []})
        assert health(coordinator.path, "--ready") == (0, "coordinator: in order")
        later = time.time() + status.SILENT + 5
        monkeypatch.setattr(status.time, "time", lambda: later)
        assert "aster: it has reported nothing for 12" in health(aster.path)[1]
