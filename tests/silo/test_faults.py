"""Processes killed and stalled while a federation runs: it completes all rounds with the same numbers.

Every fault is tried without and with encryption. Minutes of real processes: `make test-network` runs these and writes
what they found to results/network/faults.json.
"""

import contextlib
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.journal import journal_path
from factorized_fl.silo.status import read_status
from tests.silo.parties import NAMES
from tests.silo.processes import Federation, save_findings, wait_for, write_hospitals

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = [pytest.mark.xdist_group("network"), pytest.mark.network_full]

ROUNDS = 6
LONG = {
    "method": "factorized-peers",  # aster and cedar, which both have digits, receive from each other in every round
    "rounds": ROUNDS,
    "epochs": 12,
    "batch_size": 128,  # all images of a site: small steps along exact gradients do not magnify the last digits,
    "lr": 0.0002,  # which differ with encryption
    "deadline": 200.0,
}  # a second of work a round, long enough to be hit in the middle


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hospitals(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=["none", "encrypt"])
def protect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def findings(protect: str) -> Iterator[dict[str, dict]]:
    """What a test found, by the name of its fault; kept when the test has ended."""
    found: dict[str, dict] = {}
    yield found
    save_findings("faults.json", {name + ", encrypted" * (protect == "encrypt"): what for name, what in found.items()})


@pytest.fixture
def settings(protect: str) -> dict:
    return {**LONG, "protect": protect}


def kill_trainer(federation: Federation) -> None:
    """In the middle of a round."""
    kit = federation.sites["aster"].kit
    wait_for(lambda: "at work on round" in (read_status(kit) or {}).get("note", ""), "aster's next round")
    federation.sites["aster"].kill("trainer")


def kill_agent(federation: Federation) -> None:
    federation.sites["birch"].kill("process")


def kill_site(federation: Federation) -> None:
    """A power cut at a site, which joins again after the reboot."""
    federation.sites["cedar"].kill_all()
    time.sleep(3)
    federation.sites["cedar"].start()


def kill_server_process(federation: Federation) -> None:
    federation.coordinator.kill("process")


def kill_whole_server(federation: Federation) -> None:
    """The coordinator's machine reboots."""
    federation.coordinator.kill_all()
    time.sleep(3)
    federation.coordinator.start()


def stall(federation: Federation, until: Callable[[], bool] | None = None) -> None:
    """Stop a site's processes for 30 s, or until a condition holds."""
    supervisor = federation.sites["aster"].process
    assert supervisor is not None
    group = [psutil.Process(supervisor.pid), *psutil.Process(supervisor.pid).children(recursive=True)]
    for process in group:
        process.send_signal(signal.SIGSTOP)
    if until:
        wait_for(until, "what the others do meanwhile")
    else:
        time.sleep(30)
    for process in group:
        process.send_signal(signal.SIGCONT)


# What is done, and by whom and with which words it must be noticed.
FAULTS: dict[str, tuple[Callable[[Federation], None], str, str]] = {
    "trainer of a site killed": (kill_trainer, "aster", "the trainer died (exit code -9)"),
    "agent of a site killed": (kill_agent, "birch", "the party's process died (exit code -9)"),
    "all of a site killed, joined again": (kill_site, "coordinator", "round 6 of 6 is complete"),
    "process of the server killed": (kill_server_process, "coordinator", "continuing after round"),
    "all of the server killed, started again": (kill_whole_server, "coordinator", "continuing after round"),
    "site stalled for 30 s, deadline 200 s": (stall, "coordinator", "round 6 of 6 is complete"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_result_after_a_fault_equals_that_without_it(
    fault: str, settings: dict, data: Path, tmp_path: Path, findings: dict
) -> None:
    do, witness, words = FAULTS[fault]
    found = Federation(tmp_path, data, **settings).run(do)
    findings[fault] = found
    print(fault, found)
    assert words in (tmp_path / "kits" / witness / "log" / "journal.txt").read_text()
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0
    assert found["rounds_trained"] == dict.fromkeys(NAMES, ROUNDS)


def test_a_stalled_site_does_not_stop_the_others_and_comes_back(
    settings: dict, data: Path, tmp_path: Path, findings: dict
) -> None:
    """The deadline is 8 s: the others go on without aster, which is then not waited for, and takes part again later."""
    federation = Federation(tmp_path, data, **{**settings, "rounds": 60, "deadline": 8.0})
    directory = RunDirectory(federation.coordinator.kit.run)

    def fault(federation: Federation) -> None:
        before = len(directory.timing())
        stall(federation, lambda: len(directory.timing()) >= before + 10)

    found = federation.run(fault)
    timing = [line["seconds"] for line in directory.timing()]
    found |= {"longest_round": round(max(timing), 1)}
    findings["site stalled for ten rounds, deadline 8 s"] = found
    print(found)
    assert max(timing) < 8.0 + 4.0
    assert found["rounds_trained_twice"] == 0
    records = directory.metrics()
    assert records[-3]["round"] == 60
    back = [record["round"] for record in records if record["client"] == 0 and record["steps"]]
    assert len(back) <= 60 - 10 + 1  # it may have trained for the round in which it was stopped
    assert back[-1] == 60


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Callable[[Callable[[], None]], None]]:
    """Puts a folder on a small disk; yields a function that fills the disk, calls another, and empties it."""
    kept = folder.with_name(f"{folder.name}.kept")
    if folder.exists():
        shutil.move(folder, kept)
    folder.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root")

    def fill(meanwhile: Callable[[], None]) -> None:
        with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        meanwhile()
        (folder / "filler").unlink()

    try:
        if kept.exists():
            shutil.copytree(kept, folder, dirs_exist_ok=True)
        yield fill
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_at_a_site(settings: dict, data: Path, tmp_path: Path, findings: dict) -> None:
    """aster's run directory is on a small disk that fills up and is emptied later."""
    federation = Federation(tmp_path, data, **settings)
    aster = federation.sites["aster"].kit
    journal = journal_path(aster)

    def noticed() -> None:
        wait_for(lambda: "No space left" in journal.read_text(), "the full disk being noticed")
        time.sleep(3)

    with small_disk(aster.run) as fill:
        found = federation.run(lambda federation: fill(noticed))
    findings["disk of a site full for a while"] = found
    print(found)
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0


@pytest.mark.parametrize("killed", [False, True], ids=["running", "restarted"])
def test_a_full_disk_at_the_coordinator(
    killed: bool, settings: dict, data: Path, tmp_path: Path, findings: dict
) -> None:
    """The coordinator's whole kit is on a small disk that fills up, also while its process has to start again."""
    federation = Federation(tmp_path, data, **settings)
    party = federation.coordinator
    directory = RunDirectory(party.kit.run)

    def meanwhile() -> None:
        if killed:
            party.kill("process")
        before = (len(directory.timing()), party.pid("process"))
        time.sleep(15)
        assert len(directory.timing()) == before[0]  # no round is complete that is not on disk
        assert party.process is not None
        assert party.process.poll() is None, party.console  # its supervisor waits for space

    with small_disk(party.kit.path, "8m") as fill:
        found = federation.run(lambda federation: fill(meanwhile))
        findings[f"disk of the coordinator full for a while, {'process killed' if killed else 'running'}"] = found
    print(found)
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0


def test_two_thousand_idle_connections_of_strangers(settings: dict, data: Path, tmp_path: Path, findings: dict) -> None:
    """Connections without a certificate that say nothing, opened while the federation runs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 4096:
        pytest.skip(f"this user may open {most} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    federation = Federation(tmp_path, data, **settings)
    port, idle = federation.coordinator.kit.agreement.port, list[socket.socket]()

    def open_many(federation: Federation) -> None:
        while len(idle) < 2000:
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=30))
        kill_agent(federation)  # a site has to connect again beside them

    try:
        found = federation.run(open_many)
    finally:
        for line in idle:
            line.close()
    findings["2,000 idle connections"] = found | {"connections": len(idle)}
    print(found)
    assert found["equal_to_undisturbed"]
    assert found["rounds_trained_twice"] == 0
