"""Runs side by side: each is made once, and what a process or the memory ends is made again."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.simulate import side_by_side
from factorized_fl.simulate.side_by_side import run_side_by_side

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of fork; the children use one


def noting(folder: Path, number: int, then: Callable[[int], None] = lambda attempt: None) -> Callable[[], str]:
    """A run that leaves a file for each attempt."""

    def make() -> str:
        attempt = len(list(folder.glob(f"{number}-*")))
        (folder / f"{number}-{attempt}").write_text(str(os.getpid()))
        then(attempt)
        return f"run {number}"

    return make


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def attempts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_run_is_made_once_in_at_most_so_many_processes(tmp_path: Path) -> None:
    runs = [noting(tmp_path, number) for number in range(5)]
    found = dict(run_side_by_side(runs, 2, "fork"))
    assert found == {number: f"run {number}" for number in range(5)}
    assert attempts(tmp_path) == [f"{number}-0" for number in range(5)]
    processes = {path.read_text() for path in tmp_path.iterdir()}
    assert len(processes) <= 2
    assert str(os.getpid()) not in processes


def test_two_processes_work_at_the_same_time(tmp_path: Path) -> None:
    """Each run waits for the other one to begin."""
    runs = [
        noting(tmp_path, number, lambda _, other=1 - number: wait_for(tmp_path / f"{other}-0")) for number in (0, 1)
    ]
    assert len(list(run_side_by_side(runs, 2, "fork"))) == 2


def test_the_error_of_a_run_ends_the_others(tmp_path: Path) -> None:
    def refuse() -> str:
        wait_for(tmp_path / "1-0")
        raise UserError("no such data")

    with pytest.raises(UserError, match="no such data"):
        list(run_side_by_side([refuse, noting(tmp_path, 1, lambda _: time.sleep(60))], 2, "fork"))
    other = int((tmp_path / "1-0").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_a_process_that_the_system_kills_beside_others_is_made_again(tmp_path: Path) -> None:
    def die_once(attempt: int) -> None:
        if attempt == 0:
            wait_for(tmp_path / "1-0")
            os.kill(os.getpid(), signal.SIGKILL)

    # The second run is still there when the first one dies.
    runs = [noting(tmp_path, 0, die_once), noting(tmp_path, 1, lambda _: time.sleep(0.5))]
    assert sorted(run_side_by_side(runs, 2, "fork")) == [(0, "run 0"), (1, "run 1")]
    assert attempts(tmp_path) == ["0-0", "0-1", "1-0"]


def test_a_process_that_dies_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A run has ended with exit code -9: repeat"):
        list(run_side_by_side([lambda: os.kill(os.getpid(), signal.SIGKILL)], 2, "fork"))


def test_without_room_one_run_follows_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "memory", lambda: (100 * 2**20, 10**9))  # less than one process has
    runs = [noting(tmp_path, number) for number in range(3)]
    assert [index for index, _ in run_side_by_side(runs, 3, "fork")] == [0, 1, 2]
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


def test_where_memory_runs_out_the_last_one_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "short"

    def memory() -> tuple[int, int]:
        return (10**9, 10**12) if short.exists() and not (tmp_path / "over").exists() else (10**12, 10**12)

    def first(attempt: int) -> None:
        wait_for(tmp_path / "1-0")
        short.touch()
        time.sleep(1.0)
        (tmp_path / "over").touch()

    monkeypatch.setattr(side_by_side, "memory", memory)
    runs = [noting(tmp_path, 0, first), noting(tmp_path, 1, lambda attempt: time.sleep(60 if attempt == 0 else 0))]
    assert [index for index, _ in run_side_by_side(runs, 2, "fork")] == [0, 1]
    assert attempts(tmp_path) == ["0-0", "1-0", "1-1", "over", "short"]


def test_the_memory_of_this_machine_is_read() -> None:
    if Path("/proc/meminfo").exists():
        free, total = side_by_side.memory()
        assert 2**24 < free <= total
        assert side_by_side._peak(os.getpid()) > 2**24
    assert side_by_side._entries(Path("/no/such/file")) == {}


def test_processes_ignore_the_ctrl_c_that_a_terminal_sends_to_all() -> None:
    """This process keeps its own handling, and ends the others."""
    before = signal.getsignal(signal.SIGINT)
    handlings = [lambda: str(signal.getsignal(signal.SIGINT).name)] * 2
    assert dict(run_side_by_side(handlings, 2, "fork")) == {0: "SIG_IGN", 1: "SIG_IGN"}
    assert signal.getsignal(signal.SIGINT) is before
