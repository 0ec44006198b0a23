"""Processes killed, stalled and starved while a federation runs: it ends with all its rounds and the same numbers.

Minutes of real processes: `make test-network` runs these and writes what they found to results/network/faults.json.
"""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from factorized_fl import api
from factorized_fl.federation.rundir import RunDirectory
from factorized_fl.network.journal import journal_path
from tests.network.parties import NAMES
from tests.network.processes import Party, ffl, wait_for, write_hospitals, write_sites

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = [pytest.mark.xdist_group("network"), pytest.mark.network_full]

ROUNDS = 6
LONG = {"rounds": ROUNDS, "epochs": 12}  # a second of work a round, long enough to be hit in the middle


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hospitals(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def findings() -> Iterator[dict[str, dict]]:
    found: dict[str, dict] = {}
    yield found
    if out := os.environ.get("FFL_RESULTS"):
        path = Path(out) / "faults.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


class Federation:
    """Three hospitals at work."""

    def __init__(self, root: Path, data: Path, **settings: object) -> None:
        self.root, self.data = root, data
        ffl("federation", "new", write_sites(root / "sites.toml", **{**LONG, **settings}), "--out", root / "kits")
        self.coordinator = Party(root / "kits" / "coordinator")
        self.sites = {
            name: Party(root / "kits" / name, "--data", data / name, "--device", "cpu", "--no-alone") for name in NAMES
        }
        self.parties = [self.coordinator, *self.sites.values()]

    def reached(self, round: int) -> bool:
        """Whether the coordinator has completed that round."""
        return len(RunDirectory(self.coordinator.kit.run).timing()) >= round

    def run(self, fault: Callable[["Federation"], None], at: int = 2, patience: float = 240.0) -> dict[str, object]:
        """From start to end with a fault on the way, and what came of it."""
        began = time.monotonic()
        try:
            for party in self.parties:
                party.start()
            wait_for(lambda: self.reached(at), f"round {at}")
            fault(self)
            for party in self.parties:
                assert party.wait(patience) == 0, party.console
        finally:
            for party in self.parties:
                party.end()
        return {"seconds": round(time.monotonic() - began, 1), **self.compare()}

    def compare(self) -> dict[str, object]:
        """Every site's metrics beside those of the undisturbed run in one process."""
        config = self.coordinator.kit.config
        one = api.run(config, self.root / "one", data=self.data, device="cpu")
        equal, trained, twice, rounds = True, {}, 0, {}
        for k, (name, party) in enumerate(self.sites.items()):
            own = RunDirectory(party.kit.run).metrics()
            wanted = [record for record in one.metrics() if record["client"] == k]
            equal &= [{**record, "client": k} for record in own] == wanted
            lines = journal_path(party.kit).read_text().splitlines()
            counted = Counter(line.partition("trained round ")[2].partition(" ")[0] for line in lines)
            counted.pop("", None)
            twice += sum(count > 1 for count in counted.values())
            trained[name] = len(counted)
            rounds[name] = sorted({record["round"] for record in own})
            assert len(own) == len(rounds[name])  # no record lost, none doubled
            assert (party.kit.model / "model.safetensors").exists()
        done = RunDirectory(self.coordinator.kit.run)
        assert done.checkpoint_round() == config.rounds
        assert done.summary() is not None
        assert sorted({record["round"] for record in done.metrics()}) == list(range(1, config.rounds + 1))
        return {"rounds_trained": trained, "rounds_trained_twice": twice, "equal_to_undisturbed": bool(equal)}


def kill_trainer(federation: Federation) -> None:
    federation.sites["aster"].kill("trainer")


def kill_agent(federation: Federation) -> None:
    federation.sites["birch"].kill("flare")


def kill_site(federation: Federation) -> None:
    """A power cut at a site: everything is gone, and joins again after the reboot."""
    federation.sites["cedar"].kill_all()
    time.sleep(3)
    federation.sites["cedar"].start()


def kill_server_process(federation: Federation) -> None:
    federation.coordinator.kill("flare")


def kill_whole_server(federation: Federation) -> None:
    """The coordinator's machine reboots."""
    federation.coordinator.kill_all()
    time.sleep(3)
    federation.coordinator.start()


def stall(federation: Federation) -> None:
    """A site's processes stand still for 30 s."""
    supervisor = federation.sites["aster"].process
    assert supervisor is not None
    group = [psutil.Process(supervisor.pid), *psutil.Process(supervisor.pid).children(recursive=True)]
    for process in group:
        process.send_signal(signal.SIGSTOP)
    time.sleep(30)
    for process in group:
        process.send_signal(signal.SIGCONT)


# What is done, and by whom and with which words it must be noticed.
FAULTS: dict[str, tuple[Callable[[Federation], None], str, str]] = {
    "trainer of a site killed": (kill_trainer, "aster", "the trainer died (exit code -9)"),
    "agent of a site killed": (kill_agent, "birch", "FLARE's process died (exit code -9)"),
    "all of a site killed, joined again": (kill_site, "coordinator", "round 6 of 6 is complete"),
    "process of the server killed": (kill_server_process, "coordinator", "going on after round"),
    "all of the server killed, started again": (kill_whole_server, "coordinator", "going on after round"),
    "site stalled for 30 s, deadline 60 s": (stall, "coordinator", "round 6 of 6 is complete"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_everything_is_as_without_it(fault: str, data: Path, tmp_path: Path, findings: dict) -> None:
    do, witness, words = FAULTS[fault]
    found = Federation(tmp_path, data).run(do)
    findings[fault] = found
    print(fault, found)
    assert words in (tmp_path / "kits" / witness / "log" / "journal.txt").read_text()
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0
    assert found["rounds_trained"] == dict.fromkeys(NAMES, ROUNDS)


def test_a_stalled_site_does_not_stop_the_others_and_comes_back(data: Path, tmp_path: Path, findings: dict) -> None:
    """The deadline is 8 s: the others go on without aster, which is then not waited for, and takes part again later."""
    federation = Federation(tmp_path, data, rounds=60, deadline=8.0)
    began: list[float] = []

    def fault(federation: Federation) -> None:
        began.append(time.monotonic())
        stall(federation)
        began.append(len(RunDirectory(federation.coordinator.kit.run).timing()))

    found = federation.run(fault)
    timing = [line["seconds"] for line in RunDirectory(federation.coordinator.kit.run).timing()]
    found |= {"longest_round": round(max(timing), 1), "rounds_done_during_the_stall": began[1] - 2}
    findings["site stalled for 30 s, deadline 8 s"] = found
    print(found)
    assert max(timing) < 8.0 + 4.0
    assert began[1] > 3
    assert found["rounds_trained_twice"] == 0
    records = RunDirectory(federation.coordinator.kit.run).metrics()
    assert records[-3]["round"] == 60
    back = [record["round"] for record in records if record["client"] == 0 and record["steps"]]
    assert len(back) < 60
    assert back[-1] == 60


def test_a_full_disk_at_a_site(data: Path, tmp_path: Path, findings: dict) -> None:
    """aster's run directory is on a small disk that fills up and is emptied later."""
    federation = Federation(tmp_path, data)
    disk = federation.sites["aster"].kit.run
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root")

    def fill(federation: Federation) -> None:
        with (disk / "filler").open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
                    file.flush()
            except OSError:
                pass
        journal = journal_path(federation.sites["aster"].kit)
        wait_for(lambda: "No space left" in journal.read_text(), "the full disk being noticed")
        time.sleep(3)
        (disk / "filler").unlink()

    try:
        found = federation.run(fill)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    findings["disk of a site full for a while"] = found
    print(found)
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0
