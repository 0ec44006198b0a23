"""Ranks that are killed at any moment, and two torchrun nodes: minutes of real processes (`make test-network`)."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from factorized_fl.core.errors import UserError
from tests.silo.processes import save_findings
from tests.simulate.ranked import run_all
from tests.simulate.test_ranks import PACKAGED, differences, in_ranks

pytestmark = pytest.mark.network_full

ROUNDS, KILLS = 40, 5


def _rounds(run: Path) -> int:
    """The number of rounds of which a run directory has files of the aggregation."""
    return sum(1 for _ in (run / "mixing").glob("*")) if run.exists() else 0


@pytest.mark.parametrize("method", ["factorized-peers", "scaffold", "ditto", "clustered-fl"])
def test_a_rank_killed_at_five_random_moments_costs_nothing(method: str, tmp_path: Path) -> None:
    """Each time another process goes on; the files at the end are those of one process that was never killed."""
    draw = random.Random(method)
    run_all(tmp_path / "one", ROUNDS, [method])
    ours = tmp_path / "three" / method
    for _ in range(KILLS):
        further, wait, victim = draw.randrange(1, 6), draw.uniform(0, 0.1), draw.randrange(3)
        until = _rounds(ours) + further

        def kill(until: int = until, wait: float = wait, victim: int = victim) -> None:
            while _rounds(ours) < until:
                time.sleep(0.005)
            time.sleep(wait)  # any moment of a round, or of its files
            for child in psutil.Process().children():
                if child.environ().get("RANK") == str(victim):
                    child.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with pytest.raises(UserError, match="killed by signal SIGKILL"):
                in_ranks(tmp_path / "three", 3, ROUNDS, method)
        finally:
            killer.join()
        assert not (ours / "summary.json").exists()
    assert in_ranks(tmp_path / "three", 3, ROUNDS, method) == 0
    assert differences(tmp_path / "one" / method, ours) == []
    save_findings(
        "ranks.json", {f"killed, {method}": {"processes": 3, "kills": KILLS, "rounds": ROUNDS, "equal": True}}
    )


@pytest.mark.parametrize("processes", [2, 4])
def test_so_many_processes_write_the_files_of_one(processes: int, tmp_path: Path) -> None:
    """Every method of the package; tests/simulate/test_ranks.py has three processes."""
    run_all(tmp_path / "one", 3, list(PACKAGED))
    assert in_ranks(tmp_path / "many", processes, 3, *PACKAGED) == 0
    assert {name: differences(tmp_path / "one" / name, tmp_path / "many" / name) for name in PACKAGED} == {
        name: [] for name in PACKAGED
    }
    save_findings("ranks.json", {f"{processes} processes": {"methods": len(PACKAGED), "equal": True}})


def test_two_torchrun_nodes_on_two_addresses_write_the_files_of_one_process(tmp_path: Path) -> None:
    """Every method of the package: node 0 at 127.0.0.1, node 1 at 127.0.0.2."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = []
    for node in range(2):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"),
            *("--master-addr=127.0.0.1", f"--master-port={port}", f"--local-addr=127.0.0.{node + 1}"),
            *("-m", "tests.simulate.ranked", str(tmp_path / "two"), "3", *PACKAGED),
        ]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        nodes.append(subprocess.Popen(command, env=environment))
    try:
        assert [node.wait(timeout=600) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    run_all(tmp_path / "one", 3, list(PACKAGED))
    assert {name: differences(tmp_path / "one" / name, tmp_path / "two" / name) for name in PACKAGED} == {
        name: [] for name in PACKAGED
    }
    save_findings("ranks.json", {"two nodes of torchrun": {"methods": len(PACKAGED), "equal": True}})
