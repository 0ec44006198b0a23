"""A federation as real processes on loopback, with mutual TLS."""

import contextlib
import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from factorized_fl import api
from factorized_fl.data.embedded import digits, shapes
from factorized_fl.data.images import ImageSet
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.journal import journal_path
from tests.silo.parties import NAMES, write_images

PATIENCE = 180.0  # seconds for anything to happen on a busy machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_hospitals(root: Path, per_class: int = 30) -> Path:
    """Digits under ten names at one site and under four at another, drawn shapes under six at the third."""
    known = {"aster": (digits(16, 1), 4, 0), "birch": (shapes(16, 1), 6, 0), "cedar": (digits(16, 1), 10, per_class)}
    for name, (images, classes, first) in known.items():
        chosen = [
            i for c in range(classes) for i in (images.labels == c).nonzero().flatten()[first:][:per_class].tolist()
        ]
        own = tuple(f"{name} calls it {c}" for c in images.classes[:classes])
        write_images(root / name, ImageSet(name, images.images[chosen], images.labels[chosen], own))
    return root


def write_sites(path: Path, **settings: Any) -> Path:
    """A sites.toml for the three hospitals."""
    table = {
        "name": "trio",
        "address": "localhost",
        "port": free_port(),
        "method": "factorized-fl",
        "model": "cnn",
        "width": 0.5,
        "image_size": 16,
        "channels": 1,
        "rounds": 3,
        "epochs": 2,
        "batch_size": 16,
        "lr": 0.02,
        "augment": "none",
        "train_share": 0.6,
        "deadline": 60.0,
        **settings,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    path.write_text("\n".join(lines + [f'[[sites]]\nname = "{name}"' for name in NAMES]) + "\n")
    return path


def ffl(*arguments: object, folder: Path | None = None) -> str:
    """Run a command to its end; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "factorized_fl.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "200"},
        cwd=folder,
    )
    if done.returncode:
        raise AssertionError(f"ffl {arguments} gave {done.returncode}: {done.stdout} {done.stderr}")
    return done.stdout + done.stderr


def end_with_parent() -> None:
    """A test that is killed leaves nothing running (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Party:
    """One party's `ffl serve` or `ffl join`."""

    def __init__(self, kit: Path, *arguments: object, before: Sequence[str] = ()) -> None:
        """`before` are words before the command, such as those that enter a network namespace."""
        self.kit: Kit = read_kit(kit)
        self.before = before
        self.arguments = ["serve" if self.kit.is_coordinator else "join", str(kit), *map(str, arguments)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path | None = None) -> "Party":
        with (self.kit.path / "console.txt").open("ab") as console:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "factorized_fl.cli", *self.arguments],
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                preexec_fn=end_with_parent,
            )
        return self

    @property
    def console(self) -> str:
        return (self.kit.path / "console.txt").read_text()

    def pid(self, which: str) -> int | None:
        """The process id of the party's `process` (coordinator or agent), or of the `trainer`."""
        module = {"process": "factorized_fl.silo.transport.flare.process", "trainer": "factorized_fl.silo.trainer"}
        try:
            children = psutil.Process(self.process.pid).children(recursive=True) if self.process else []
            return next((child.pid for child in children if module[which] in child.cmdline()), None)
        except psutil.Error:
            return None

    def kill(self, which: str) -> None:
        pid = wait_for(lambda: self.pid(which), f"{which} of {self.kit.party}")
        os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill the supervisor and all processes below it, as a power cut does."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *children):
            process.kill()
        self.process.wait()

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def end(self) -> None:
        """End all processes of the party."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill_all()


def listening(supervisor: int | None) -> set[tuple[str, int]]:
    """Addresses that any process under this supervisor listens on."""
    found: set[tuple[str, int]] = set()
    try:
        children = psutil.Process(supervisor).children(recursive=True) if supervisor else []
    except psutil.Error:
        return found
    for process in children:
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def wait_for(thing: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true result of `thing`; fails if there is none within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := thing():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")


class Federation:
    """Three hospitals at work."""

    def __init__(self, root: Path, data: Path, alone: bool = False, **settings: object) -> None:
        self.root, self.data = root, data
        choice = "--alone" if alone else "--no-alone"
        ffl("federation", "new", write_sites(root / "sites.toml", **settings), "--out", root / "kits")
        self.coordinator = Party(root / "kits" / "coordinator")
        self.sites = {
            name: Party(root / "kits" / name, "--data", data / name, "--device", "cpu", choice) for name in NAMES
        }
        self.parties = [self.coordinator, *self.sites.values()]

    def reached(self, round_number: int) -> bool:
        """True if the coordinator has completed that round."""
        return len(RunDirectory(self.coordinator.kit.run).timing()) >= round_number

    def run(self, fault: Callable[["Federation"], None] = lambda federation: None, at: int = 2) -> dict[str, Any]:
        """Run from start to end with a fault on the way; returns findings."""
        began = time.monotonic()
        try:
            for party in self.parties:
                party.start()
            wait_for(lambda: self.reached(at), f"round {at}")
            fault(self)
            for party in self.parties:
                assert party.wait(240) == 0, party.console
        finally:
            for party in self.parties:
                party.end()
        return {"seconds": round(time.monotonic() - began, 1), **self.compare()}

    def compare(self) -> dict[str, Any]:
        """Every site's metrics beside those of the undisturbed run in one process.

        With encryption sums differ in their last digits, as sites encrypt with random numbers, and training magnifies
        that: losses may differ by half a percent. Without any sharing they differ by two percent and more.
        """
        config = self.coordinator.kit.config
        one = api.run(config, self.root / "one", data=self.data, device="cpu")
        equal, trained, twice, rounds, differences = True, {}, 0, {}, [0.0]
        for k, (name, party) in enumerate(self.sites.items()):
            own = RunDirectory(party.kit.run).metrics()
            wanted = [record for record in one.metrics() if record["client"] == k]
            mine = [{**record, "client": k} for record in own]
            differences.append(largest_difference(mine, wanted))
            equal &= mine == wanted if config.protect == "none" else differences[-1] < 5e-3
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
        found = {"rounds_trained": trained, "rounds_trained_twice": twice, "equal_to_undisturbed": bool(equal)}
        return found if config.protect == "none" else {**found, "largest_difference_of_losses": max(differences)}


def largest_difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    """The largest relative difference of two losses, infinite if other rounds, clients or steps have records."""
    if [[r[name] for name in ("round", "client", "steps")] for r in ours] != [
        [r[name] for name in ("round", "client", "steps")] for r in theirs
    ]:
        return math.inf
    pairs = [(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in ("loss", "train_loss")]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def flat(record: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The values of nested tables under one name each."""
    parts = [flat(v, f"{before}{n}/") if isinstance(v, dict) else {f"{before}{n}": v} for n, v in record.items()]
    return {name: value for part in parts for name, value in part.items()}


def save_findings(name: str, found: dict[str, Any]) -> None:
    """Keep what long tests found where $FFL_RESULTS says, if it says so, beside what others found before."""
    if out := os.environ.get("FFL_RESULTS"):
        path = Path(out) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **found}, indent=2) + "\n")
