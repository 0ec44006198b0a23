"""How many sites one coordinator serves: real connections with mutual TLS, all on this machine, with a tiny network.

    python -m benchmarks.many_sites [--sites 60,120,200] [--out results/network/scale.json]

Each site has the two processes that it has in a real federation, the agent with FLARE's connection and the trainer,
with its own kit, certificate and files. Two things differ, because one machine has to hold all of them: the processes
are forked from one that has imported the libraries, so that these are in memory once, and there is no supervisor beside
them. The coordinator runs as `ffl serve`. A case ends early where memory becomes scarce. Cases of other numbers
of sites that the file has are kept.
"""

import argparse
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads PyTorch

import nvflare.private.fed.app.client.client_train  # noqa: F401  imported once, before the processes are forked
import psutil

import factorized_fl.silo.site
import factorized_fl.silo.transport.flare.components  # noqa: F401
from factorized_fl.results.environment import describe_environment
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo import keeper
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.settings import Settings, save_settings
from factorized_fl.silo.status import read_status
from factorized_fl.silo.trainer import answer_requests
from factorized_fl.silo.transport import network
from factorized_fl.silo.transport.flare.process import run_party
from tests.silo.parties import NAMES
from tests.silo.processes import Party, ffl, free_port, write_hospitals

ROUNDS, PATIENCE = 3, 1500.0
LEFT = 3e9  # bytes of memory that are not used
TERMS = f"""\
name = "many"
address = "localhost"
method = "factorized-fl"
model = "cnn"
width = 0.25
image_size = 8
channels = 1
rounds = {ROUNDS}
epochs = 1
batch_size = 16
lr = 0.02
augment = "none"
train_share = 0.6
deadline = {PATIENCE}
"""


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


def own_memory(pids: list[int]) -> float:
    """Bytes that only these processes hold."""
    found = 0
    for pid in pids:
        with suppress(psutil.Error):
            found += psutil.Process(pid).memory_full_info().uss
    return found


def measure(root: Path, count: int) -> dict[str, Any]:
    data = write_hospitals(root / "data", 10)
    names = [f"site-{number:03d}" for number in range(count)]
    sites = "\n".join(f'[[sites]]\nname = "{name}"' for name in names)
    (root / "sites.toml").write_text(f"{TERMS}port = {free_port()}\n{sites}\n")
    began = time.monotonic()
    ffl("federation", "new", root / "sites.toml", "--out", root / "kits")
    kits_took = time.monotonic() - began
    coordinator = Party(root / "kits" / "coordinator").start()
    pids: list[int] = []
    began, most, least = time.monotonic(), 0.0, float("inf")
    found: dict[str, Any] = {"sites": count, "seconds_for_kits": round(kits_took, 1)}
    try:
        for k, name in enumerate(names):
            kit = read_kit(root / "kits" / name)
            save_settings(kit, Settings(data / NAMES[k % 3], "cpu", alone=False))
            network().prepare(kit)
            kit.logs.mkdir(exist_ok=True)
            pids += fork_site(kit)
            time.sleep(0.2)
        while coordinator.process is not None and coordinator.process.poll() is None:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            least = min(least, psutil.virtual_memory().available)
            if least < LEFT or time.monotonic() - began > 2 * PATIENCE:
                break
            if (
                len(RunDirectory(coordinator.kit.run).timing()) if coordinator.kit.run.exists() else 0
            ) == 1 and not most:
                most = own_memory(pids)
            time.sleep(2.0)
        done = coordinator.process is not None and coordinator.process.poll() == 0
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        coordinator.end()
    found |= {"complete": done, "available_memory_at_least_gb": round(least / 1e9, 1)}
    if most:
        found["own_memory_per_site_mb"] = round(most / count / 1e6, 1)
    if not coordinator.kit.run.exists():
        return found | {"reason": (read_status(coordinator.kit) or {}).get("note", "")}
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", default="60,120,200")
    parser.add_argument("--out", type=Path, default=Path("results/network/scale.json"))
    options = parser.parse_args()
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, the memory that the processes share
    known = json.loads(options.out.read_text())["cases"] if options.out.exists() else []
    for count in map(int, options.sites.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            case = measure(Path(folder), count)
        print(case, flush=True)
        known = sorted([*(each for each in known if each["sites"] != count), case], key=lambda each: each["sites"])
        environment = {
            **describe_environment(1, "cpu"),
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "load": os.getloadavg()[0],
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"cases": known, "environment": environment}, indent=2) + "\n")


if __name__ == "__main__":
    main()
