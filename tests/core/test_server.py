"""The server's half of a round, asked about one thing at a time."""

from dataclasses import dataclass

import pytest
import torch

from factorized_fl.core.mixing import Mean
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Mixing, Roles, Server, Tensors
from factorized_fl.methods import Method

ROLES: dict = {}


@dataclass(frozen=True)
class Counting(Method):
    """Counts its own mixings, and answers in another type than that of the model."""

    name = "counting"

    def extra_up(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        return {name: model[name] for name in shared}

    def extra_down(self, model: Tensors, shared: frozenset[str], roles: Roles) -> Tensors:
        return {name: model[name] for name in shared}

    def mix(self, server: Server) -> Mixing:
        count = server.state.get("count", torch.zeros(())) + 1
        rows = {"w": count.double().expand(1, 2)}
        return Mixing(Mean(server.received / server.received.sum()), state={"count": count}, rows=rows, extra=rows)


def server_of(count: int = 3) -> ServerState:
    stack = {"w": torch.ones(count, 2)}
    sizes = torch.ones(count, dtype=torch.float64)
    return ServerState(Counting(), ROLES, seed=1, stack=stack, initial={"w": torch.ones(2)}, sizes=sizes)


def no_losses(client: int, tensors: Tensors) -> list[float]:
    raise AssertionError("this method tries no models")


def sent(server: ServerState, round_number: int, clients: list[int]) -> dict[str, torch.Tensor]:
    return dict(server.prepare(round_number, clients, no_losses).items())


def update(server: ServerState, clients: list[int]) -> None:
    server.begin_updates()
    server.keep(clients, [("w", torch.full((len(clients), 2), 5.0)), ("extra/w", torch.ones(len(clients), 2))])


def test_preparing_a_round_again_begins_with_the_same_state() -> None:
    """A coordinator does so when a site is excluded during the round: a server's momentum must not step twice."""
    server = server_of()
    update(server, [0, 1])
    for clients in ([0, 1, 2], [0, 1]):
        assert sent(server, 2, clients)["w"].tolist() == [[1.0, 1.0]] * len(clients)
    assert server.state["count"] == 1
    checkpoint = {name: tensor.clone() for name, tensor in server.tensors.items()}
    assert sent(server, 3, [0])["w"].tolist() == [[2.0, 2.0]]
    again = server_of()
    again.load(checkpoint)
    for _ in range(2):
        assert sent(again, 3, [0])["w"].tolist() == [[2.0, 2.0]]


def test_what_is_sent_has_the_type_that_clients_expect() -> None:
    server = server_of()
    update(server, [0])
    assert {name: tensor.dtype for name, tensor in sent(server, 2, [0, 2]).items()} == {
        "w": torch.float32,
        "extra/w": torch.float32,
    }


def test_extra_payloads_are_zero_before_a_client_has_sent_any() -> None:
    server = server_of()
    assert server.extra["w"].tolist() == [[0.0, 0.0]] * 3
    update(server, [1])
    assert server.extra["w"].tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


def test_an_excluded_client_is_not_among_those_that_sent_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    server, seen = server_of(), []
    mix = Counting.mix
    monkeypatch.setattr(Counting, "mix", lambda method, view: seen.append(view.updated.tolist()) or mix(method, view))
    update(server, [0, 1])
    server.received[1] = False  # as the coordinator does when it quarantines a site
    sent(server, 2, [0])
    assert seen == [[True, False, False]]


def test_the_methods_state_returns_to_the_device_that_it_was_on() -> None:
    """The device "meta" stands for a GPU: a state beside the stack is loaded to it, a state on the CPU stays there."""
    server = server_of()
    update(server, [0])
    server.stack = {"w": torch.ones(3, 2, device="meta")}
    server.state = {"model": torch.ones(2, device="meta"), "count": torch.ones(())}
    names = [name for name in server.tensors if name.startswith("method")]
    assert names == ["method-with-stack/model", "method/count"]
    stored = {name: torch.zeros(tensor.shape) for name, tensor in server.tensors.items()}  # as a file gives them
    stored |= {"received": server.received, "updated": server.updated}
    server.stack["w"] = torch.ones(3, 2, device="meta")
    server.load(stored)
    assert {name: tensor.device.type for name, tensor in server.state.items()} == {"model": "meta", "count": "cpu"}
