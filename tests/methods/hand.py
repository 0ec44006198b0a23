"""Computations by hand, to compare methods with.

Views of servers and clients, so that a test can look at one property of a method; and plain PyTorch loops over models
of their own, which take from the package only the images of each batch and the participants of each round.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from factorized_fl.core.views import Batch, Local, Phase, Server, Tensors
from factorized_fl.nn import Role
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round, sampling_of
from tests.tiny import tiny_config, tiny_scenario, tiny_set

Numbers = dict[str, torch.Tensor]


def no_loss(client: int, tensors: Tensors) -> float:
    raise AssertionError("this method must not ask for a validation loss")


def server(
    stack: Mapping[str, Any] | Any,
    *,
    start: Mapping[str, Any] | None = None,
    round_number: int = 2,
    clients: Sequence[int] | None = None,
    received: Sequence[bool] | None = None,
    sizes: Sequence[float] | None = None,
    fingerprints: torch.Tensor | None = None,
    state: Tensors | None = None,
    loss: Callable[[int, Tensors], float] = no_loss,
    seed: int = 0,
    extra: Tensors | None = None,
) -> Server:
    """A server that has received from all clients; by default all participate, and training began at zero.

    The clients that it has received from are those that trained in the round before.
    """
    tensors = {n: torch.as_tensor(t) for n, t in (stack if isinstance(stack, Mapping) else {"w": stack}).items()}
    count = len(next(iter(tensors.values())))
    return Server(
        round=round_number,
        clients=range(count) if clients is None else clients,
        stack=tensors,
        start={n: torch.zeros_like(t) if start is None else torch.as_tensor(start[n]) for n, t in tensors.items()},
        fingerprints=fingerprints,
        sizes=torch.tensor([1.0] * count if sizes is None else sizes, dtype=torch.float64),
        received=torch.tensor([True] * count if received is None else received),
        state=state or {},
        rng=np.random.default_rng(seed),
        validation_losses=each(loss),
        initial={n: torch.zeros_like(t[0]) for n, t in tensors.items()},
        updated=torch.tensor([True] * count if received is None else received),
        extra=extra or {},
    )


def each(loss: Callable[[int, Tensors], float]) -> Callable[[int, Tensors], list[float]]:
    """The losses of a stack of sets of tensors, from a function of one set."""

    def losses(client: int, tensors: Tensors) -> list[float]:
        count = len(next(iter(tensors.values())))
        return [loss(client, {name: stacked[m] for name, stacked in tensors.items()}) for m in range(count)]

    return losses


def local(
    loss_gradient: Callable[[Tensors, Batch], Tensors],
    *,
    shared: Iterable[str] = (),
    start: Tensors | None = None,
    tensors: Tensors | None = None,
    roles: Mapping[str, Role] | None = None,
) -> Local:
    """The view of a client in a local step, or with `tensors` after training."""
    return Local(loss_gradient, roles or {}, frozenset(shared), start or {}, tensors or {})


NOTHING = Batch(torch.empty(0), torch.empty(0))


# -- whole rounds


def federation_of(method: str, agree: bool, **settings: Any) -> Federation:
    """Four clients over one domain whose labels agree, or over two domains whose labels do not."""
    given = {"weight_decay": 1e-2, "momentum": 0.5, "epochs": 2, "permuted": not agree, **settings}
    config = tiny_config(method, **given)
    domains = (tiny_set("bars", 3, 90),) if agree else None
    scenario = tiny_scenario(config, domains)
    assert scenario.labels_agree == agree
    federation = build_federation(config, scenario, torch.device("cpu"))
    vars(federation)["whole"] = scenario  # some methods train on a part of it
    return federation


class Hand:
    """Every client's own module and momentum, and SGD as the configuration says."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.config = federation, federation.config
        self.clients = range(self.config.clients)
        self.models = [self.module(k) for k in self.clients]
        self.momentum = [self.zeros(model) for model in self.models]
        self.weights = [float(len(client.train)) for client in federation.scenario.clients]
        agree = federation.scenario.labels_agree
        self.shared = [n for n, _ in self.models[0].named_parameters() if agree or not n.startswith("head.")]
        self.updated: list[int] = []  # the clients that trained in the round before
        self.server = self.numbers(self.models[0], self.shared)

    def module(self, k: int) -> nn.Module:
        """A copy of a client's model as it is now."""
        model = copy.deepcopy(self.federation.engine.models[len(self.federation.scenario.clients[k].classes)])
        model.load_state_dict({name: t.clone() for name, t in self.federation.clients.state.client(k).items()})
        return model.train()

    @staticmethod
    def zeros(model: nn.Module) -> Numbers:
        return {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    @staticmethod
    def numbers(model: nn.Module, names: list[str]) -> Numbers:
        return {name: p.detach().clone() for name, p in model.named_parameters() if name in names}

    def participants(self, number: int) -> list[int]:
        """The clients that train in a round; the draws are the run's own."""
        return sampling_of(self.federation).draw(number)[1]

    @torch.no_grad()
    def download(self, k: int, given: Numbers) -> None:
        for name, p in self.models[k].named_parameters():
            if name in given:
                p.copy_(given[name])

    def train(
        self,
        number: int,
        k: int,
        model: nn.Module,
        momentum: Numbers,
        *,
        phase: Phase | None = None,
        index: int = 0,
        only: Callable[[str], bool] = lambda name: True,
        more: Callable[[str, torch.Tensor], Any] = lambda name, p: 0.0,
    ) -> int:
        """SGD with momentum and weight decay; `more` is added to the gradient. Returns the number of steps."""
        steps = 0
        for batch in self.federation.engine.batches(number, k, phase, index):
            model.zero_grad()
            cross_entropy(model(batch.images), batch.labels).backward()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if only(name):
                        step = p.grad + more(name, p) + self.config.weight_decay * p
                        momentum[name] = self.config.momentum * momentum[name] + step
                        p -= self.config.lr * momentum[name]
            steps += 1
        return steps

    def mean(self, clients: list[int], name: str, weights: list[float]) -> torch.Tensor:
        """The weighted mean of a parameter over the clients' models."""
        total = sum(weights[k] for k in clients)
        return sum(weights[k] / total * dict(self.models[k].named_parameters())[name].detach() for k in clients)

    def average(self, weights: list[float]) -> None:
        """The server's model becomes the mean of the last round's clients, if there were any."""
        if self.updated:
            self.server = {name: self.mean(self.updated, name, weights) for name in self.server}


def correct_answers(hand: Hand, k: int, model: nn.Module) -> int:
    scenario, client = hand.federation.scenario, hand.federation.scenario.clients[k]
    images = ((scenario.images[client.test].float() / 255 - 0.5) / 0.25).double()
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(images)
    return int((logits.argmax(1) == client.labelling[scenario.labels[client.test]]).sum())


def assert_equal(got: Numbers, wanted: nn.Module | Numbers, what: str) -> None:
    expected = wanted.state_dict() if isinstance(wanted, nn.Module) else wanted
    assert got.keys() >= expected.keys()
    for name, tensor in expected.items():
        assert tensor.dtype in (torch.float64, torch.int64)
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-12, msg=f"{what}: {name}")


def resume(federation: Federation) -> None:
    """Replaces a federation by a new one into which its checkpoint was loaded."""
    kept = {name: tensor.clone() for name, tensor in federation.tensors.items()}
    fresh = build_federation(federation.config, vars(federation)["whole"], torch.device("cpu"))
    fresh.load(kept)
    vars(federation).update(vars(fresh))


def compare(federation: Federation, hand: Hand, number: int, one_client: Callable[[int, int], None]) -> list[dict]:
    """Runs a round both ways; `one_client` trains client k by hand. Returns the round's records.

    The federation is resumed from a checkpoint before its third round.
    """
    if number == 3:
        resume(federation)
    records, _ = run_round(federation, number)
    hand.updated = hand.participants(number)
    for k in hand.updated:
        one_client(number, k)
    for k in hand.clients:
        assert_equal(federation.clients.state.client(k), hand.models[k], f"round {number}, client {k}")
        momentum = federation.clients.momentum.client(k)
        assert_equal(momentum, {n: t.detach() for n, t in hand.momentum[k].items()}, f"momentum of client {k}")
    return records
