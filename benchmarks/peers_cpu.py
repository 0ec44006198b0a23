"""FedAvg on a CPU: a bare PyTorch loop, FedLab, pfl-research, Flower's simulation, and this package, in turns.

    python benchmarks/peers_cpu.py [--environment .cache/peers] [--only "NAME;..."] [--repeats 3] [--rounds 5]
                                   [--network small] [--out results/performance/peers-cpu.json]

All train the same network from the same weights on the same 20 clients (128 random images of 3 x 32 x 32 each, 4
batches of 32 in one local epoch) for the same number of rounds with plain SGD; nothing is tested except by this
package, which cannot be told to leave out the last round's test (32 images for each client). With `--network resnet9`
the paper's ResNet-9 is trained on 2 clients of 256 images, 4 batches of 64, by the bare loop and by this package only.

Each run is a process of its own, with PyTorch's own number of threads unless its name says otherwise; the runs take
turns. `ratio` is that of the medians of seconds per round, `ratio_of_fastest` that of the fastest round of each, which
other work on the machine disturbs least. `start` is the time from the start of the process to the first round, with
imports, and `torch` that of importing PyTorch in it; `peak` is the largest memory of the process and its children.

The other implementations come from PyPI into an environment of their own, which the script makes. One that cannot be
installed or fails is named with the reason, and the others go on.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LARGE = "resnet9" in sys.argv  # which network; the processes of a run have the arguments of the first
CLIENTS, IMAGES, BATCH, LR = (2, 256, 64, 0.01) if LARGE else (20, 128, 32, 0.05)
WIDTH = 34  # of the column of names
TORCH = "torch>=2.11,<2.14"  # so that pip takes the wheel that this package was tested with
PACKAGES = {
    "fedlab": [
        ["--no-deps", "fedlab==1.3.0"],
        ["munch", "pandas", "tqdm", "psutil", "numpy", "pynvml", "pillow", "scikit-learn"],
    ],
    "pfl-research": [["pfl[pytorch]==0.6.0"]],
    "flower": [["flwr[simulation]==1.13.1"]],
}


def network() -> Any:
    """Two convolutions and two Linear layers: 71,000 numbers, from the same weights in every process; or ResNet-9."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    if LARGE:
        from factorized_fl.nn.models import ResNet9

        return ResNet9(3, lambda width: width, lambda width: nn.Linear(width, 10))
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


@cache
def client_data(k: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(100 + k)
    return (
        torch.randn(IMAGES, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (IMAGES,), generator=generator),
    )


class Clock:
    """Notes when rounds end, and how long importing PyTorch takes, which every implementation does."""

    def __init__(self, began: float) -> None:
        self.began, self.times = began, list[float]()
        first = time.time()
        import torch  # noqa: F401

        self.torch = time.time() - first

    def mark(self) -> None:
        self.times.append(time.time())

    def result(self) -> dict[str, Any]:
        each = [late - early for early, late in zip(self.times, self.times[1:], strict=False)]
        return {"start": self.times[0] - self.began, "torch": self.torch, "rounds": each}


def bare(clock: Clock, rounds: int) -> None:
    import torch

    model, data = network(), [client_data(k) for k in range(CLIENTS)]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    clock.mark()
    for _ in range(rounds):
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for x, y in data:
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for chosen in torch.randperm(IMAGES).split(BATCH):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor / CLIENTS if tensor.is_floating_point() else tensor // CLIENTS
        state = total
        clock.mark()


def ours(clock: Clock, rounds: int, **more: Any) -> None:
    import factorized_fl as ffl

    class Marks:
        def started(self, federation: Any, done: int) -> None:
            clock.mark()

        def client_done(self, round_number: int, client: int) -> None: ...

        def round_done(self, round_number: int, records: Any) -> None:
            clock.mark()

    clients = [
        ffl.ClientData(x.numpy(), y.numpy(), test=(x[:32].numpy(), y[:32].numpy()), classes=list("abcdefghij"))
        for x, y in (client_data(k) for k in range(CLIENTS))
    ]
    settings = {"rounds": rounds, "epochs": 1, "batch_size": BATCH, "lr": LR, "momentum": 0.0, "weight_decay": 0.0}
    settings |= {"method": "fedavg", "test_every": rounds, "profile": "none", **more}
    folder = Path(tempfile.gettempdir()) / f"peers-{clock.began}"  # the same in all processes of a run
    try:
        ffl.run(
            clients, folder, model=lambda example, outputs: network(), observers=[Marks()], device="cpu", **settings
        )
    finally:
        if clock.times:
            shutil.rmtree(folder, ignore_errors=True)


def fedlab(clock: Clock, rounds: int) -> None:
    from importlib.util import find_spec
    from unittest.mock import MagicMock

    if find_spec("torchvision") is None:  # imported with its data sets, of which none is used here
        sys.modules.update({f"torchvision{part}": MagicMock() for part in ("", ".transforms", ".datasets", ".models")})
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from torch.utils.data import DataLoader, TensorDataset

    class Data:
        def get_dataloader(self, client_id: int, batch_size: int) -> Any:
            return DataLoader(TensorDataset(*client_data(client_id)), batch_size=batch_size, shuffle=True)

    model = network()
    trainer = SGDSerialClientTrainer(model, CLIENTS, cuda=False)
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, BATCH, LR)
    handler = SyncServerHandler(model, rounds, 1.0, cuda=False)
    handler.num_clients = CLIENTS
    clock.mark()
    while not handler.if_stop:  # as StandalonePipeline.main has it, without its evaluation
        chosen = handler.sample_clients()
        trainer.local_process(handler.downlink_package, chosen)
        for package in trainer.uplink_package:
            handler.load(package)
        clock.mark()


def pfl_research(clock: Clock, rounds: int) -> None:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def loss(self, x: Any, y: Any, eval: bool = False) -> Any:  # noqa: A002  # pfl passes it by this name
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: Any, y: Any, eval: bool = True) -> dict[str, Any]:  # noqa: A002
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    class Marks(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            clock.mark()
            from pfl.metrics import Metrics

            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            clock.mark()
            from pfl.metrics import Metrics

            return False, Metrics()

    users = list(range(CLIENTS))
    data = FederatedDataset(
        lambda k: Dataset(list(client_data(k)), user_id=str(k)), get_user_sampler("minimize_reuse", users)
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    backend = SimulatedBackend(training_data=data, val_data=data)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        backend=backend, model=model,
        model_train_params=NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH),
        model_eval_params=None, callbacks=[Marks()],
    )  # fmt: skip


def flower(clock: Clock, rounds: int) -> None:
    import torch
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Client(NumPyClient):
        def __init__(self, k: int) -> None:
            self.model, self.data = network(), client_data(k)

        def fit(self, parameters: Any, config: Any) -> Any:
            names = self.model.state_dict().keys()
            given = {name: torch.from_numpy(array) for name, array in zip(names, parameters, strict=True)}
            self.model.load_state_dict(given)
            optimizer, (x, y) = torch.optim.SGD(self.model.parameters(), lr=LR), self.data
            for chosen in torch.randperm(IMAGES).split(BATCH):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            return [tensor.numpy() for tensor in self.model.state_dict().values()], IMAGES, {}

    class Marking(FedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            found = super().aggregate_fit(server_round, results, failures)
            clock.mark()
            return found

    def server(context: Any) -> Any:
        weights = ndarrays_to_parameters([tensor.numpy() for tensor in network().state_dict().values()])
        strategy = Marking(
            fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=CLIENTS, min_available_clients=CLIENTS,
            initial_parameters=weights,
        )  # fmt: skip
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds + 1))  # its start counts

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


class Run(NamedTuple):
    """How an implementation is run; `threads` 0 leaves PyTorch its own number."""

    function: Callable[..., None]
    threads: int = 0
    processes: int = 1
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


TWO, BF16 = "2 processes", {"cpu_precision": "bf16"}
RUNS = {
    "bare": Run(bare),
    "bare, 1 thread": Run(bare, 1),
    "ours": Run(ours),
    f"ours, {TWO}": Run(ours, 0, 2),
}
if LARGE:
    beta = {"method": "factorized-fl-beta"}
    RUNS |= {
        f"ours, {TWO}, bf16": Run(ours, 0, 2, BF16),
        f"ours, {TWO}, factorised": Run(ours, 0, 2, beta),
        f"ours, {TWO}, bf16, factorised": Run(ours, 0, 2, BF16 | beta),
    }
else:
    RUNS |= {
        "fedlab": Run(fedlab),
        "fedlab, 1 thread": Run(fedlab, 1),
        "pfl-research": Run(pfl_research),
        "pfl-research, 1 thread": Run(pfl_research, 1),
        "flower": Run(flower),  # Ray gives each of its processes one thread
    }


def memory(process: int) -> float:
    """Bytes of the process and its children that are not shared with others, in GiB."""
    import psutil

    total = 0
    try:
        whole = psutil.Process(process)
        for each in (whole, *whole.children(recursive=True)):
            total += getattr(each.memory_full_info(), "pss", 0)
    except psutil.Error:
        return 0.0
    return total / 2**30


def once(name: str, python: str, rounds: int) -> dict[str, Any]:
    """One run in a process of its own; its error, if it fails."""
    began = time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = [python, __file__, "--one", name, "--rounds", str(rounds), "--began", str(began)]
        command += ["--network", "resnet9" if LARGE else "small"]
        environment = os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        environment.pop("OMP_NUM_THREADS", None)
        if RUNS[name].threads:
            environment["OMP_NUM_THREADS"] = str(RUNS[name].threads)
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        peak, ended = [0.0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                peak[0] = max(peak[0], memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process.wait(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
        ended.set()
        watcher.join()
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith('{"start"')]
        if process.returncode or not lines:
            return {"error": (errors.read().strip().splitlines() or ["no output"])[-1][-300:]}
        return {**json.loads(lines[-1]), "peak_gib": peak[0]}


def install(folder: Path, names: list[str]) -> dict[str, str]:
    """Makes the environment of the others; returns why some of them could not be installed."""
    python, failed = folder / "bin" / "python", dict[str, str]()
    if names and not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", TORCH, "numpy", "psutil"], check=True)
    for name in names:
        marker = folder / f"{name}.installed"
        if marker.exists():
            continue
        for packages in PACKAGES[name]:
            pinned = [] if "--no-deps" in packages else [TORCH]
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", *packages, *pinned], capture_output=True, text=True
            )
            if done.returncode:
                failed[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                break
        else:
            marker.touch()
    return failed


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The medians over the runs, and the fastest of all their rounds."""
    found = {what: statistics.median(run[what] for run in runs) for what in ("start", "torch", "peak_gib")}
    rounds = [seconds for run in runs for seconds in run["rounds"]]
    return {**found, "seconds": statistics.median(rounds), "fastest": min(rounds)}


def one(name: str, rounds: int, began: float) -> None:
    """One run in this process, or in those that it starts; prints the clock's result as JSON."""
    run = RUNS[name]
    if run.processes > 1 and "RANK" not in os.environ:
        from factorized_fl.simulate.launch import launch

        raise SystemExit(launch([sys.executable, *sys.argv], run.processes))
    clock = Clock(began)
    run.function(clock, rounds, **run.settings)
    if clock.times:  # the first process of a run alone has observers
        print("\n" + json.dumps(clock.result()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--only", default=";".join(RUNS))
    parser.add_argument("--network", choices=("small", "resnet9"), default="small")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two runs")
    parser.add_argument("--out", type=Path, default=Path("results/performance/peers-cpu.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.rounds, arguments.began)
        return
    names = arguments.only.split(";")
    package = {name: name.partition(",")[0] for name in names}
    failed = install(arguments.environment, sorted({*package.values()} & {*PACKAGES}))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names if package[name] not in failed}
    for turn in range(arguments.repeats):
        for name in list(runs):
            own = package[name] in PACKAGES
            python = str(arguments.environment / "bin" / "python") if own else sys.executable
            time.sleep(arguments.pause)
            found = once(name, python, arguments.rounds)
            if "error" in found:
                failed[name] = found["error"]
                del runs[name]
                print(f"{name:{WIDTH}} failed: {found['error']}", flush=True)
                continue
            found["seconds"] = statistics.median(found["rounds"])
            runs[name].append(found)
            numbers = (
                f"{found['seconds']:.2f} s a round, start {found['start']:.1f} s, peak {found['peak_gib']:.2f} GiB"
            )
            print(f"{name:{WIDTH}} turn {turn + 1}: {numbers}", flush=True)
    from factorized_fl.results.environment import describe_environment

    rows = {name: summary(all_of) for name, all_of in runs.items() if all_of}
    for row in rows.values():
        row["ratio"] = row["seconds"] / rows["bare"]["seconds"]
        row["ratio_of_fastest"] = row["fastest"] / rows["bare"]["fastest"]
    print(f"\n{'':{WIDTH}} ratio  of fastest  s a round  start s  torch s  peak GiB")
    for name, row in rows.items():
        print(
            f"{name:{WIDTH}} {row['ratio']:5.2f} {row['ratio_of_fastest']:11.2f} {row['seconds']:10.2f} "
            f"{row['start']:8.1f} {row['torch']:8.1f} {row['peak_gib']:9.2f}"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"rows": rows, "failed": failed, "runs": runs, "environment": describe_environment(1, "cpu")}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
