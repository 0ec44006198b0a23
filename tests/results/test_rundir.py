"""The lock of a run directory: one process at a time, and nothing left behind."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorized_fl.core.errors import Busy, UserError
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, write_folder

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


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete run in which no file can be created; the user who runs tests may be allowed everything."""
    directory = run_federation(
        tiny_config("stand-alone", rounds=1), tmp_path / "run", data=write_folder(tmp_path / "i")
    )
    opened = os.open

    def refused(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)
    return directory.path


def test_a_complete_run_in_a_folder_that_cannot_be_written_is_resumed_as_it_is(read_only: Path) -> None:
    before = files(read_only)
    directory = run_federation(tiny_config("stand-alone", rounds=1), read_only, resume=True)
    summary = directory.summary()
    assert summary is not None
    assert len(summary["clients"]) == 4
    assert files(read_only) == before
    with pytest.raises(UserError, match="already holds a run: add resume=True"):
        run_federation(tiny_config("stand-alone", rounds=1), read_only)
    with pytest.raises(UserError, match="started with another configuration"):
        run_federation(tiny_config("stand-alone", rounds=2), read_only, resume=True)


def test_the_lock_of_another_process_stays_where_it_cannot_be_opened(read_only: Path) -> None:
    (read_only / ".lock").write_bytes(b"")
    with RunDirectory(read_only).lock():
        pass
    assert (read_only / ".lock").exists()


def test_another_run_in_a_folder_that_cannot_be_written_is_one_sentence(read_only: Path) -> None:
    (read_only / "summary.json").unlink()
    complaint = re.escape(
        f"Cannot write to '{read_only}' (Read-only file system): make it writable, or choose another folder."
    )
    with pytest.raises(UserError, match=f"^{complaint}$"):
        run_federation(tiny_config("stand-alone", rounds=1), read_only, resume=True)


def test_the_package_can_be_imported_without_fcntl() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import factorized_fl.results.rundir"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
