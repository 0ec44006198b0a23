"""How many sites one coordinator serves: real connections with mutual TLS, all on this machine, with a tiny network.

    python -m benchmarks.many_sites [--sites 60,100,200] [--out results/network/scale.json]

Each site has the two processes that it has in a real federation, the agent with FLARE's connection and the trainer,
with its own kit, certificate and files. Two things differ, because one machine has to hold all of them: the processes
are forked from one that has imported the libraries, so that these are in memory once, and there is no supervisor beside
them. The coordinator runs as `ffl serve`. A case ends early where memory becomes scarce. Cases of other numbers
of sites that the file has are kept. `--joined` measures what `ffl join` starts instead: the memory that each process of
a site adds to the machine, in a federation of three.
"""

import argparse
import gc
import importlib
import json
import os
import pkgutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads PyTorch

import psutil
from nvflare.fuel.f3 import drivers

from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo import keeper
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.settings import Settings, save_settings
from factorized_fl.silo.status import read_status
from factorized_fl.silo.trainer import answer_requests
from factorized_fl.silo.transport import network
from factorized_fl.silo.transport.flare.process import run_party
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config
from tests.silo.processes import Party, ffl, free_port, wait_for, write_hospitals

ROUNDS, PATIENCE = 3, 1500.0
LONGEST = 480.0  # seconds after which a case is ended
PAUSE = 0.2  # seconds between the starts of two sites
LEFT = 3e9  # bytes of memory that are not used
TRAINING = {
    "method": "factorized-fl",
    "model": "cnn",
    "width": 0.25,
    "image_size": 8,
    "channels": 1,
    "rounds": ROUNDS,
    "epochs": 1,
    "batch_size": 16,
    "lr": 0.02,
    "augment": "none",
    "train_share": 0.6,
}
FLARE = (
    "nvflare.private.fed.app.client.client_train",
    "nvflare.app_common.decomposers.numpy_decomposers",
    "nvflare.app_common.np.np_downloader",
    "nvflare.app_common.resource_consumers.gpu_resource_consumer",
    "nvflare.app_common.resource_managers.gpu_resource_manager",
    "factorized_fl.silo.transport.flare.components",
)  # what an agent loads


class Forked:
    """A trainer's process as `keeper.Trainer` sees it, forked before and joined to the agent by two pipes."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid, self.stdin, self.stdout = pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")

    def poll(self) -> int | None:
        """None while the trainer runs."""
        return None if psutil.pid_exists(self.pid) else 1

    def wait(self) -> int:
        """Does not wait: the process that forked the trainer reaps it."""
        return 0

    def kill(self) -> None:
        """End the trainer."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def load_libraries(folder: Path) -> None:
    """Load what a site's two processes load, so that forks share it: connections' drivers, and a federation in here."""
    for name in (*FLARE, *(f"{drivers.__name__}.{each.name}" for each in pkgutil.iter_modules(drivers.__path__))):
        importlib.import_module(name)
    kits = kits_of(folder, trio_config(**TRAINING | {"rounds": 1}))
    Loopback(kits, make_sites(kits, write_hospitals(folder / "data", 10))).run()
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, the memory that the processes share


def fork_site(kit: Kit) -> list[int]:
    """Fork a site's trainer and agent; returns their process ids."""
    to_trainer, to_agent = os.pipe(), os.pipe()
    log = os.open(kit.logs / "process.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    trainer = os.fork()
    if trainer == 0:
        os.dup2(to_trainer[0], 0)
        os.dup2(to_agent[1], 1)
        os.dup2(log, 2)
        os.closerange(3, 1 << 12)
        _leave(lambda: answer_requests(kit.path))
    agent = os.fork()
    if agent == 0:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(to_trainer[0])
        os.close(to_agent[1])
        os.environ.update(network().environment(kit))
        keeper.subprocess.Popen = lambda *words, **options: Forked(trainer, to_trainer[1], to_agent[0])  # type: ignore
        _leave(lambda: run_party(kit))
    for file in (*to_trainer, *to_agent, log):
        os.close(file)
    return [trainer, agent]


def _leave(work: Any) -> None:
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def own_memory(pids: Iterable[int]) -> float:
    """Bytes that only these processes hold, each by itself: what ending one of them would free."""
    found = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            found += psutil.Process(pid).memory_full_info().uss
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds of a core that these processes have used so far."""
    found = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            used = psutil.Process(pid).cpu_times()
            found += used.user + used.system
    return found


def processes_of(party: Party) -> list[int]:
    """The process ids of a party: its supervisor and all below it."""
    with suppress(psutil.Error):
        if party.process is not None:
            return [party.process.pid, *(p.pid for p in psutil.Process(party.process.pid).children(recursive=True))]
    return []


def memory_found(coordinator: Party, pids: list[int]) -> dict[str, float]:
    """Memory in MB of a site's processes, the mean of ten of each, and of the coordinator, with its threads."""
    serving, trainers, agents = processes_of(coordinator), pids[::2][:10], pids[1::2][:10]
    return {
        "own_memory_of_a_sites_trainer_mb": round(own_memory(trainers) / len(trainers) / 1e6, 1),
        "own_memory_of_a_sites_agent_mb": round(own_memory(agents) / len(agents) / 1e6, 1),
        "own_memory_of_the_coordinator_mb": round(own_memory(serving) / 1e6, 1),
        "threads_of_the_coordinator": max((psutil.Process(pid).num_threads() for pid in serving), default=0),
    }


def connected(coordinator: Party) -> int:
    """The number of sites that the coordinator's status shows as connected."""
    return sum(bool(row["connected"]) for row in (read_status(coordinator.kit) or {"sites": []})["sites"])


def rounds_done(coordinator: Party) -> int:
    """The number of complete rounds."""
    return len(RunDirectory(coordinator.kit.run).timing()) if coordinator.kit.run.exists() else 0


def measure(root: Path, count: int) -> dict[str, Any]:
    """Run a federation of so many sites; returns what it took."""
    data = write_hospitals(root / "data", 10)
    names = [f"site-{number:03d}" for number in range(count)]
    began = time.monotonic()
    make_kits(root, names)
    found: dict[str, Any] = {"sites": count, "seconds_for_kits": round(time.monotonic() - began, 1)}
    coordinator = Party(root / "kits" / "coordinator").start()
    pids: list[int] = []
    began, least, most, used = time.monotonic(), float("inf"), 0, 0.0
    try:
        for k, name in enumerate(names):
            kit = read_kit(root / "kits" / name)
            save_settings(kit, Settings(data / NAMES[k % 3], "cpu", alone=False))
            network().prepare(kit)
            kit.logs.mkdir(exist_ok=True)
            pids += fork_site(kit)
            time.sleep(PAUSE)
        while coordinator.process is not None and coordinator.process.poll() is None:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            least = min(least, psutil.virtual_memory().available)
            most = max(most, connected(coordinator))
            if least < LEFT or time.monotonic() - began > LONGEST:
                found["ended_because"] = "memory became scarce" if least < LEFT else f"{LONGEST:.0f} s had passed"
                break
            if most == count and "seconds_until_all_are_connected" not in found:
                found["seconds_until_all_are_connected"] = round(time.monotonic() - began, 1)
                found["cpu_seconds_of_a_site_until_then"] = round(cpu_seconds(pids) / count, 2)
            if rounds_done(coordinator) >= 1 and "threads_of_the_coordinator" not in found:
                found |= memory_found(coordinator, pids)
            used = max(used, cpu_seconds(processes_of(coordinator)))
            time.sleep(0.5)
        found["complete"] = coordinator.process is not None and coordinator.process.poll() == 0
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        coordinator.end()
    found |= {"most_connected_at_once": most, "cpu_seconds_of_the_coordinator": round(used, 1)}
    found |= {"available_memory_at_least_gb": round(least / 1e9, 1)}
    if not coordinator.kit.run.exists():
        return found | {"note": (read_status(coordinator.kit) or {}).get("note", "")}
    run = RunDirectory(coordinator.kit.run)
    timing, records = run.timing(), run.metrics()
    if timing:
        found["rounds"] = len(timing)
        found["sites_in_each_round"] = [
            sum(bool(r["steps"]) for r in records if r["round"] == line["round"]) for line in timing
        ]
        found["bytes_up_per_site_and_round"] = round(statistics.fmean(record["up_bytes"] for record in records))
        found["seconds_of_each_round"] = [round(line["seconds"], 1) for line in timing]
        found["seconds_from_start_to_end"] = round(time.monotonic() - began, 1)
    return found


def make_kits(root: Path, names: Iterable[str]) -> None:
    """Write the kits of a federation with these sites to `kits` in `root`."""
    sites = "\n".join(f'[[sites]]\nname = "{name}"' for name in names)
    terms = TRAINING | {"name": "many", "address": "localhost", "port": free_port(), "deadline": PATIENCE}
    lines = [f"{key} = {json.dumps(value)}" for key, value in terms.items()]
    (root / "sites.toml").write_text("\n".join([*lines, sites]) + "\n")
    ffl("federation", "new", root / "sites.toml", "--out", root / "kits")


def measure_joined(root: Path) -> dict[str, float]:
    """The memory that each process of a site adds to the machine as `ffl join` starts it, in MB."""
    data = write_hospitals(root / "data", 10)
    make_kits(root, NAMES)
    site = Party(root / "kits" / NAMES[0], "--data", data / NAMES[0], "--device", "cpu", "--no-alone")
    others = [Party(root / "kits" / n, "--data", data / n, "--device", "cpu", "--no-alone") for n in NAMES[1:]]
    parties = [Party(root / "kits" / "coordinator"), site, *others]
    try:
        for party in parties[:-1]:  # the last site never comes, so that the others wait
            party.start()
        wait_for(lambda: connected(parties[0]) == 2, "the connection of two sites")
        pids = {"supervisor": processes_of(site)[0], "agent": site.pid("process"), "trainer": site.pid("trainer")}
        return {name: round(own_memory([pid]) / 1e6, 1) for name, pid in pids.items() if pid is not None}
    finally:
        for party in parties:
            party.end()


def save(path: Path, found: dict[str, Any]) -> None:
    """Write what was found, with this machine."""
    memory = round(psutil.virtual_memory().total / 1e9, 1)
    found["environment"] = {**describe_environment(1, "cpu"), "cores": os.cpu_count(), "memory_gb": memory}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", default="60,100,200")
    parser.add_argument("--joined", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/network/scale.json"))
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"cases": []}
    with tempfile.TemporaryDirectory() as folder:
        if options.joined:
            found["own_memory_of_a_site_of_ffl_join_mb"] = measure_joined(Path(folder))
            save(options.out, found)
            return
        load_libraries(Path(folder))
    for count in map(int, options.sites.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            case = measure(Path(folder), count) | {"load": round(os.getloadavg()[0], 1)}
        cases = [*(each for each in found["cases"] if each["sites"] != count), case]
        found["cases"] = sorted(cases, key=lambda each: each["sites"])
        save(options.out, found)
        print(case, flush=True)


if __name__ == "__main__":
    main()
