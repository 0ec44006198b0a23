"""Processes that carry messages or supervise others stay small; the package imports where POSIX locks do not exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.core.errors import Busy
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo import trainer
from factorized_fl.silo.agreement import read_kit, write_kit
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.settings import Settings, save_settings
from tests.silo.parties import kits_of, trio_config

SMALL = (
    *("agent", "agreement", "control", "finish", "journal", "keeper", "mailbox", "messages", "preflight", "settings"),
    *("intruders",),
    *("status", "supervise", "trainer", "transport", "transport.flare.setup", "transport.flare.process"),
)
BLOCKED = "import sys; sys.modules['torch'] = sys.modules['fcntl'] = None\n"


def run_python(code: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", SMALL)
def test_a_small_process_imports_no_torch_and_no_fcntl(module: str) -> None:
    done = run_python(f"{BLOCKED}import importlib; importlib.import_module('factorized_fl.silo.{module}')")
    assert done.returncode == 0, done.stderr


def test_the_components_at_a_site_import_no_torch() -> None:
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    code = "import sys, factorized_fl.silo.transport.flare.components; raise SystemExit('torch' in sys.modules)"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_kit_is_read_supervised_and_shown_without_torch(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    save_settings(kit, Settings(tmp_path))
    (kit.run).mkdir()
    (kit.run / "metrics.jsonl").write_text('{"round": 2, "accuracy": 0.5, "up_bytes": 1500, "down_bytes": 0}\n{"rou')
    code = f"""{BLOCKED}
from pathlib import Path
from factorized_fl.silo import agreement, control, journal, settings, status, supervise
kit = agreement.read_kit(Path(sys.argv[1]))
journal.Journal(kit)("a line")
status.write_status(kit, "waiting")
settings.read_settings(kit)
control.take(kit)
with supervise.exclusive_use(kit):
    print(supervise.is_running(kit), *status.status_lines(kit), *journal.last_lines(kit))
"""
    done = run_python(code, kit.path)
    assert done.returncode == 0, done.stderr
    assert "True aster of trio: waiting round 2 of 3: 50.00% of own test images; up 1.5 kB, down 0 bytes" in done.stdout


def test_a_trainer_waits_for_another_whatever_the_words_of_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    monkeypatch.setattr(trainer, "_PAUSE", 0.0)
    kit.run.mkdir()
    with RunDirectory(kit.run).lock(), pytest.raises(Busy), RunDirectory(kit.run).lock():
        pass
    refusals = [Busy("some other words"), Busy("and others")]
    lock = RunDirectory.lock

    def busy_twice(directory: RunDirectory) -> object:
        if refusals:
            raise refusals.pop()
        return lock(directory)

    monkeypatch.setattr(RunDirectory, "lock", busy_twice)
    with trainer.exclusive(kit.run):
        assert refusals == []


def test_a_trainer_does_not_wait_because_an_error_sounds_like_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data are missing, in a folder whose name is the beginning of the lock's message."""
    kit = kits_of(tmp_path, trio_config())["aster"]
    write_kit(kit)
    save_settings(kit, Settings(tmp_path / "Another process is at work"))
    command = [sys.executable, "-m", "factorized_fl.silo.trainer", str(kit.path)]
    (kit.logs).mkdir()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode == trainer.REFUSED
    assert "Error: " in journal_path(kit).read_text()


def test_a_kit_with_options_that_this_version_does_not_know_is_read_and_refused_when_used(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["coordinator"]
    write_kit(kit)
    text = (kit.path / "federation.toml").read_text()
    (kit.path / "federation.toml").write_text(text.replace("rounds = 3", "laps = 3"))
    again = read_kit(kit.path)
    Journal(again)("is written without the configuration")
    with pytest.raises(Exception, match="Unknown option 'laps'"):
        _ = again.config
