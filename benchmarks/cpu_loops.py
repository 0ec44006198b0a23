"""FedAvg on a CPU as a bare PyTorch loop, with FedLab, pfl-research, Flower's simulation, and this package.

    python benchmarks/cpu_loops.py NAME [--network small] [--rounds 5] [--began SECONDS]

Trains by one of `RUNS` and prints as JSON when its rounds ended. `benchmarks/peers_cpu.py` compares them; it calls this
script with the Python of an environment that has the packages.

All train what `benchmarks/cpu_work.py` says with plain SGD. Nothing is tested except by this package, which cannot be
told to leave out the last round's test (32 images for each client).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cpu_work import WORKS, Clock, Work, client_data, make_network


def bare(work: Work, clock: Clock) -> None:
    import torch

    model, data = make_network(work.network), [client_data(k, work.images) for k in range(work.clients)]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    clock.mark()
    for _ in range(work.rounds):
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for x, y in data:
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
            for chosen in torch.randperm(work.images).split(work.batch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor / work.clients if tensor.is_floating_point() else tensor // work.clients
        state = total
        clock.mark()


def ours(work: Work, clock: Clock, **more: Any) -> None:
    import factorized_fl as ffl

    class Marks:
        def started(self, federation: Any, done: int) -> None:
            clock.mark()

        def client_done(self, round_number: int, client: int) -> None: ...

        def round_done(self, round_number: int, records: Any) -> None:
            clock.mark()

    clients = [
        ffl.ClientData(x.numpy(), y.numpy(), test=(x[:32].numpy(), y[:32].numpy()), classes=list("abcdefghij"))
        for x, y in (client_data(k, work.images) for k in range(work.clients))
    ]
    settings = {"rounds": work.rounds, "epochs": 1, "batch_size": work.batch, "lr": work.lr, "momentum": 0.0}
    settings |= {"weight_decay": 0.0, "method": "fedavg", "test_every": work.rounds, "profile": "none", **more}
    folder = Path(tempfile.gettempdir()) / f"peers-{clock.began}"  # the same in all processes of a run
    try:
        ffl.run(
            clients, folder, model=lambda example, outputs: make_network(work.network), observers=[Marks()],
            device="cpu", **settings,
        )  # fmt: skip
    finally:
        if clock.times:
            shutil.rmtree(folder, ignore_errors=True)


def fedlab(work: Work, clock: Clock) -> None:
    from importlib.util import find_spec
    from unittest.mock import MagicMock

    if find_spec("torchvision") is None:  # imported with its data sets, of which none is used here
        sys.modules.update({f"torchvision{part}": MagicMock() for part in ("", ".transforms", ".datasets", ".models")})
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from torch.utils.data import DataLoader, TensorDataset

    class Data:
        def get_dataloader(self, client_id: int, batch_size: int) -> Any:
            data = TensorDataset(*client_data(client_id, work.images))
            return DataLoader(data, batch_size=batch_size, shuffle=True)

    model = make_network(work.network)
    trainer = SGDSerialClientTrainer(model, work.clients, cuda=False)
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, work.batch, work.lr)
    handler = SyncServerHandler(model, work.rounds, 1.0, cuda=False)
    handler.num_clients = work.clients
    clock.mark()
    while not handler.if_stop:  # as StandalonePipeline.main has it, without its evaluation
        chosen = handler.sample_clients()
        trainer.local_process(handler.downlink_package, chosen)
        for package in trainer.uplink_package:
            handler.load(package)
        clock.mark()


def pfl_research(work: Work, clock: Clock) -> None:
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
            self.net = make_network(work.network)

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

    users = list(range(work.clients))
    data = FederatedDataset(
        lambda k: Dataset(list(client_data(k, work.images)), user_id=str(k)), get_user_sampler("minimize_reuse", users)
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    backend = SimulatedBackend(training_data=data, val_data=data)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds, evaluation_frequency=10**6, train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        backend=backend, model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=1, local_batch_size=work.batch
        ),
        model_eval_params=None, callbacks=[Marks()],
    )  # fmt: skip


def flower(work: Work, clock: Clock) -> None:
    import torch
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Client(NumPyClient):
        def __init__(self, k: int) -> None:
            self.model, self.data = make_network(work.network), client_data(k, work.images)

        def fit(self, parameters: Any, config: Any) -> Any:
            names = self.model.state_dict().keys()
            given = {name: torch.from_numpy(array) for name, array in zip(names, parameters, strict=True)}
            self.model.load_state_dict(given)
            optimizer, (x, y) = torch.optim.SGD(self.model.parameters(), lr=work.lr), self.data
            for chosen in torch.randperm(work.images).split(work.batch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            return [tensor.numpy() for tensor in self.model.state_dict().values()], work.images, {}

    class Marking(FedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            found = super().aggregate_fit(server_round, results, failures)
            clock.mark()
            return found

    def server(context: Any) -> Any:
        weights = ndarrays_to_parameters(
            [tensor.numpy() for tensor in make_network(work.network).state_dict().values()]
        )
        strategy = Marking(
            fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=work.clients, min_available_clients=work.clients,
            initial_parameters=weights,
        )  # fmt: skip
        # The first round has no mark before it, so one more is run.
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=work.rounds + 1))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()),
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


class Run(NamedTuple):
    """How an implementation is run; `threads` 0 leaves PyTorch its own number."""

    function: Callable[..., None]
    threads: int = 0
    processes: int = 1
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed
    networks: tuple[str, ...] = ("small",)


TWO, BOTH = "2 processes", ("small", "resnet9")
_BF16, _BETA, _LARGE = {"cpu_precision": "bf16"}, {"method": "factorized-fl-beta"}, ("resnet9",)
RUNS = {
    "bare": Run(bare, networks=BOTH),
    "bare, 1 thread": Run(bare, 1, networks=BOTH),
    "ours": Run(ours, networks=BOTH),
    f"ours, {TWO}": Run(ours, 0, 2, networks=BOTH),
    f"ours, {TWO}, bf16": Run(ours, 0, 2, _BF16, _LARGE),
    f"ours, {TWO}, factorised": Run(ours, 0, 2, _BETA, _LARGE),
    f"ours, {TWO}, bf16, factorised": Run(ours, 0, 2, _BF16 | _BETA, _LARGE),
    "fedlab": Run(fedlab),
    "fedlab, 1 thread": Run(fedlab, 1),
    "pfl-research": Run(pfl_research),
    "pfl-research, 1 thread": Run(pfl_research, 1),
    "flower": Run(flower),  # Ray gives each of its processes one thread
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--network", choices=WORKS, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--began", type=float, default=time.time(), help="when the process was started")
    arguments = parser.parse_args()
    run = RUNS[arguments.name]
    if run.processes > 1 and "RANK" not in os.environ:
        from factorized_fl.simulate.launch import launch

        raise SystemExit(launch([sys.executable, *sys.argv], run.processes))
    clock = Clock(arguments.began)
    run.function(WORKS[arguments.network]._replace(rounds=arguments.rounds), clock, **run.settings)
    if clock.times:  # the first process of a run alone has observers
        print("\n" + json.dumps(clock.result()), flush=True)


if __name__ == "__main__":
    main()
