"""Real processes with encryption: the memory of the coordinator's processes, and its disk, hold no shared tensor."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from factorized_fl.results.rundir import RunDirectory
from tests.silo.processes import Federation, Party, wait_for, write_hospitals

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = [pytest.mark.xdist_group("network"), pytest.mark.network_full]

BYTES = 32  # of eight numbers in a row


def memory_of(process: psutil.Process) -> Iterator[bytes]:
    """All writable memory of a process, in pieces that overlap by the length of what is searched."""
    with Path(f"/proc/{process.pid}/maps").open() as maps, Path(f"/proc/{process.pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(bound, 16) for bound in span.split("-"))
            for place in range(start, end, 1 << 24):
                memory.seek(place)
                try:
                    yield memory.read(min(1 << 24, end - place) + BYTES)
                except OSError:  # the end of a mapping, or one that cannot be read
                    memory.seek(place)
                    yield memory.read(min(1 << 24, end - place))


def holds(party: Party, needles: list[bytes]) -> tuple[bool, bool]:
    """Whether the memory of any process of a party, and whether any of its files, has one of the needles."""
    assert party.process is not None
    processes = psutil.Process(party.process.pid).children(recursive=True)
    in_memory = any(needle in piece for each in processes for piece in memory_of(each) for needle in needles)
    files = [path.read_bytes() for path in party.kit.path.rglob("*") if path.is_file()]
    return in_memory, any(needle in content for content in files for needle in needles)


@pytest.mark.parametrize("protect", ["none", "encrypt"])
def test_the_coordinator_holds_shared_tensors_only_without_encryption(protect: str, tmp_path: Path) -> None:
    """Without encryption the search finds aster's numbers at the coordinator, so it is able to find them."""
    data = write_hospitals(tmp_path / "data")
    federation = Federation(tmp_path, data, method="factorized-peers", rounds=6, epochs=12, protect=protect)
    found: dict[str, tuple[bool, bool]] = {}

    def search(federation: Federation) -> None:
        aster = federation.sites["aster"]
        directory = RunDirectory(aster.kit.run)
        before = len(RunDirectory(federation.coordinator.kit.run).timing())
        wait_for(lambda: directory.previous_path.exists(), "aster's second checkpoint")
        wait_for(lambda: federation.reached(before + 1), "the next round")
        stopped = [psutil.Process(party.process.pid) for party in (aster, federation.coordinator) if party.process]
        stopped += [child for process in stopped for child in process.children(recursive=True)]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            needles = []
            for path in (directory.checkpoint_path, directory.previous_path):
                for name, tensor in load_file(path).items():
                    flat = tensor.flatten()[:8]
                    if name.startswith("state/") and name.endswith(".u") and len(flat) == 8:
                        needles.append(flat.numpy().tobytes())
            assert needles
            found["coordinator"] = holds(federation.coordinator, needles)
            found["aster"] = holds(aster, needles)
        finally:
            for process in stopped:
                process.send_signal(signal.SIGCONT)

    assert federation.run(search)["rounds_trained_twice"] == 0
    print(found)
    assert found["aster"] == (True, True)
    assert found["coordinator"] == (protect == "none", protect == "none")
