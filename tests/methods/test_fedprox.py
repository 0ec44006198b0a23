import torch

from factorized_fl.core.views import Local
from factorized_fl.methods.fedavg import FedAvg
from factorized_fl.methods.fedprox import FedProx
from factorized_fl.simulate.rounds import download, run_round
from tests.methods.hand import NOTHING, local
from tests.tiny import tiny_federation

START = {"w": torch.tensor([1.0, 2.0]), "head": torch.tensor([5.0])}
NOW = {"w": torch.tensor([2.0, 0.0]), "head": torch.tensor([7.0])}


def loss_gradient(at, batch):
    return {"w": torch.tensor([0.5, 0.5]), "head": torch.tensor([0.25])}


def test_shared_parameters_are_pulled_and_local_ones_are_not() -> None:
    """By hand: 0.5 + 0.1 * (2 - 1) and 0.5 + 0.1 * (0 - 2)."""
    step = local(loss_gradient, shared=["w"], start=START)
    gradient = FedProx(proximal=0.1).gradient(step, NOW, [NOTHING])
    assert torch.allclose(gradient["w"], torch.tensor([0.6, 0.3]))
    assert gradient["head"].tolist() == [0.25]


def test_a_classifier_that_travels_is_pulled_too() -> None:
    step = local(loss_gradient, shared=["w", "head"], start=START)
    gradient = FedProx(proximal=0.1).gradient(step, NOW, [NOTHING])
    assert torch.allclose(gradient["head"], torch.tensor([0.45]))


def test_with_a_pull_of_zero_it_is_fedavg() -> None:
    plain, free, pulled = (
        tiny_federation("fedavg"),
        tiny_federation("fedprox", options={"proximal": 0.0}),
        tiny_federation("fedprox", options={"proximal": 1.0}),
    )
    for federation in (plain, free, pulled):
        run_round(federation, 1)
        run_round(federation, 2)
    assert all(torch.equal(tensor, free.tensors[name]) for name, tensor in plain.tensors.items())
    assert not all(torch.equal(tensor, pulled.tensors[name]) for name, tensor in plain.tensors.items())


def test_the_pull_is_towards_the_downloaded_parameters() -> None:
    seen: list[Local] = []

    class Watching(FedAvg):
        def gradient(self, local, parameters, batches):
            seen.append(local)
            return super().gradient(local, parameters, batches)

    federation = tiny_federation("fedprox")
    run_round(federation, 1)
    download(federation, 2, range(4), range(4))
    downloaded = {name: tensor.clone() for name, tensor in federation.clients.state.client(2).items()}
    federation.engine.method = Watching()
    federation.engine.train(2, [2], federation.clients, lambda client: None)
    assert len(seen) > 1
    for step in seen:
        assert all(torch.equal(tensor, downloaded[name]) for name, tensor in step.start.items())
        assert step.shared == federation.shared
    assert not torch.equal(federation.clients.state.client(2)["conv1.conv.weight"], downloaded["conv1.conv.weight"])
