"""Several processes simulate a federation together with the results of one."""

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.simulate.launch import launch
from factorized_fl.simulate.ranks import pin
from factorized_fl.simulate.run import Stopped, run_federation
from tests.simulate.ranked import SETTINGS, run_all
from tests.tiny import tiny_config, tiny_scenario

# Without the methods that other tests register; FedProto needs clients whose labels agree.
PACKAGED = tuple(
    name
    for name, method in METHODS.items()
    if method.__module__.startswith("factorized_fl.") and not method.needs_agreeing_labels
)
FILES = (
    "metrics.jsonl",
    "checkpoint.safetensors",
    "summary.json",
    "right.safetensors",
    "analysis.json",
    "clients.json",
)


def in_ranks(folder: Path, processes: int, rounds: int, *methods: str) -> int:
    command = [sys.executable, "-m", "tests.simulate.ranked", str(folder), str(rounds), *methods]
    return launch(command, processes)


def differences(one: Path, other: Path) -> list[str]:
    """The files of two runs that are not byte for byte equal; the files of each round are among them."""
    rounds = [str(file.relative_to(one)) for part in ("mixing", "traces") for file in sorted((one / part).glob("*"))]
    return [name for name in (*FILES, *rounds) if (one / name).read_bytes() != (other / name).read_bytes()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ranks")
    run_all(root / "one", 3, list(PACKAGED))
    assert in_ranks(root / "three", 3, 3, *PACKAGED) == 0
    return root / "one", root / "three"


@pytest.mark.parametrize("method", PACKAGED)
def test_three_processes_write_the_files_of_one(folders: tuple[Path, Path], method: str) -> None:
    one, three = folders
    assert differences(one / method, three / method) == []


class StopAfterTwo:
    def started(self, *_: object) -> None: ...

    def client_done(self, *_: object) -> None: ...

    def round_done(self, round_number: int, _: object) -> None:
        if round_number == 2:
            raise Stopped


def test_two_processes_continue_what_one_began(folders: tuple[Path, Path], tmp_path: Path) -> None:
    methods = ("fedfomo", "factorized-peers")
    for name in methods:
        config = tiny_config(name, rounds=3, **SETTINGS)
        with pytest.raises(Stopped):
            run_federation(config, tmp_path / name, scenario=tiny_scenario(config), observers=[StopAfterTwo()])
    assert in_ranks(tmp_path, 2, 3, *methods) == 0
    for name in methods:
        assert differences(folders[0] / name, tmp_path / name) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_run_and_the_run_continues(tmp_path: Path, victim: int) -> None:
    run_all(tmp_path / "one", 20, ["factorized-fl"])
    checkpoint = tmp_path / "two" / "factorized-fl" / "checkpoint.safetensors"

    def kill() -> None:
        while not checkpoint.exists():
            time.sleep(0.01)
        ranks = {child.environ()["RANK"]: child for child in psutil.Process().children() if "RANK" in child.environ()}
        ranks[str(victim)].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(
            UserError, match=rf"^Process {victim + 1} of 2 has ended \(killed by signal SIGKILL: repeat"
        ):
            in_ranks(tmp_path / "two", 2, 20, "factorized-fl")
    finally:
        killer.join()
    assert not (checkpoint.parent / "summary.json").exists()
    assert in_ranks(tmp_path / "two", 2, 20, "factorized-fl") == 0
    assert differences(tmp_path / "one" / "factorized-fl", checkpoint.parent) == []


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 6))
def test_clients_are_pinned_so_that_no_rank_has_much_more_work(work: list[int], size: int) -> None:
    ranks = pin(work, size)
    loads = [sum(w for w, rank in zip(work, ranks, strict=True) if rank == r) for r in range(size)]
    assert max(loads) - min(loads) <= max(work)
    assert ranks == pin(work, size)
