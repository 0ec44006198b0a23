"""The lock of a run directory: one process at a time, and nothing left behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.core.errors import Busy, UserError
from factorized_fl.results.rundir import RunDirectory
from tests.tiny import tiny_config

HOLDER = """
import sys, time
from factorized_fl.results.rundir import RunDirectory
with RunDirectory(sys.argv[1]).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def test_a_lock_leaves_no_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.lock():
        (directory.path / "result").touch()
        with pytest.raises(Busy, match="Another process is at work"), RunDirectory(directory.path).lock():
            pass
        assert directory.path.is_dir()
    assert files(tmp_path) == ["run", "run/result"]
    with directory.lock():  # again
        pass


def test_a_failed_start_leaves_no_folder_and_a_folder_that_was_there_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(UserError, match="no data"), RunDirectory(tmp_path / name).lock():
            raise UserError("no data")
    assert files(tmp_path) == ["mine"]


def test_a_killed_process_loses_its_lock_and_its_folder_can_be_used(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    process = subprocess.Popen([sys.executable, "-c", HOLDER, directory.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(Busy), directory.lock():
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    with directory.lock():
        assert directory.rounds_done(tiny_config(), resume=False) == 0


def test_what_a_killed_process_left_is_no_foreign_file(tmp_path: Path) -> None:
    for name in (".lock", "config.toml.part"):
        (tmp_path / name).touch()
    assert RunDirectory(tmp_path).rounds_done(tiny_config(), resume=False) == 0
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UserError, match="is not empty and not a run"):
        RunDirectory(tmp_path).rounds_done(tiny_config(), resume=False)


def test_the_package_can_be_imported_without_fcntl() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import factorized_fl.results.rundir"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
