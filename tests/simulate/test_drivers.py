"""A simulation and the coordinator of organisations drive the same server state, with the same checks."""

from collections.abc import Callable

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import Groups, Mean, Sparse
from factorized_fl.core.server import ServerState
from factorized_fl.core.views import Mixing, Server, Tensors
from factorized_fl.methods import METHODS
from factorized_fl.silo.memory import Memory
from factorized_fl.simulate.rounds import download, run_round
from tests.methods.hand import no_loss
from tests.tiny import tiny_config, tiny_federation

EYE = torch.eye(4, dtype=torch.float64)
MEAN = torch.full((4,), 0.25, dtype=torch.float64)
FIRST = "conv1.conv.weight"


def no_losses(k: int, tensors: Tensors) -> list[float]:
    return [no_loss(k, tensors)]


def coordinator() -> Memory:
    """A coordinator that has received an update from all sites."""
    memory = Memory(tiny_config("fedavg"), ("ash", "birch", "cedar", "elm"))
    for k in range(4):
        update = {name: stacked[k] + k for name, stacked in memory.server.stack.items()}
        memory.keep(k, update, {})
    return memory


def change_in_place(server: Server) -> Mixing:
    server.stack[FIRST].zero_()
    return Mixing(EYE)


WRONG: dict[str, Callable[[Server], object]] = {
    "negative weights": lambda server: Mixing(torch.tensor([[2.0, -1.0, 0, 0], *EYE.tolist()[1:]])),
    "a mean that is no mean": lambda server: Mixing(Mean(2 * MEAN)),
    "negative weights in groups": lambda server: Mixing(Groups(torch.zeros(4, dtype=torch.int64), -MEAN)),
    "unknown clients": lambda server: Mixing(Sparse(torch.full((4, 1), 9), torch.ones(4, 1))),
    "no mixing": lambda server: None,
    "too few clients": lambda server: Mixing(EYE[:3, :3]),
    "other weights of a tensor": lambda server: Mixing(EYE, others={FIRST: 2 * EYE}),
    "a tensor that does not travel": lambda server: Mixing(EYE, others={"nix": EYE}),
    "rows of another shape": lambda server: Mixing(EYE, rows={FIRST: torch.ones(1, 2)}),
    "undeclared payloads": lambda server: Mixing(EYE, extra={"nix": torch.ones(1)}),
    "revert without starts": lambda server: Mixing(EYE, revert=torch.ones(4, dtype=torch.bool)),
    "a change in place": change_in_place,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_simulation_and_coordinator_refuse_a_mixing_with_the_same_sentence(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, memory = tiny_federation("fedavg"), coordinator()
    run_round(federation, 1)
    monkeypatch.setattr(METHODS["fedavg"], "mix", lambda self, server: WRONG[wrong](server))
    sentences = []
    with pytest.raises(UserError, match=r"^The mix of fedavg .*\.$") as found:
        download(federation, 2, range(4), range(4))
    sentences.append(str(found.value))
    with pytest.raises(UserError, match=r"^The mix of fedavg .*\.$") as found:
        memory.prepare(2, range(4), no_losses)
    sentences.append(str(found.value))
    assert sentences[0] == sentences[1]


def test_the_coordinator_refuses_negative_weights() -> None:
    class Negative(METHODS["fedavg"]):  # type: ignore[misc]
        name = "negative"

        def mix(self, server: Server) -> Mixing:
            return Mixing(Mean(torch.tensor([0.5, 0.5, 0.5, -0.5])))

    memory = coordinator()
    memory.server.method = Negative()
    with pytest.raises(
        UserError,
        match=r"The mix of negative returns wrong weights: rows must sum to 1, without negative weights\.",
    ):
        memory.prepare(2, [0, 1], no_losses)


def test_simulation_and_coordinator_make_the_same_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights, other weights and ready rows for some tensors, for participants in the order of their numbers."""
    rows = {}

    def answer(self: object, server: Server) -> Mixing:
        names = list(server.stack)
        rows[names[0]] = torch.full_like(server.stack[names[0]][:1], 3.0)
        return Mixing(Mean(MEAN), others={names[1]: EYE.flip(0)}, rows=rows, state={"round": torch.tensor(2)})

    monkeypatch.setattr(METHODS["fedavg"], "mix", answer)
    memory, federation = coordinator(), tiny_federation("fedavg")
    run_round(federation, 1)
    for name, stacked in memory.server.stack.items():
        federation.clients.state.common[name].copy_(stacked)
    downloads, sent = memory.prepare(2, [1, 3], no_losses)
    simulated = download(federation, 2, [1, 3], [1, 3])
    names = list(memory.server.stack)
    for k in (1, 3):
        assert sent[k].keys() == federation.shared
        assert all(torch.equal(tensor, federation.clients.state.common[n][k]) for n, tensor in sent[k].items())
        assert (sent[k][names[0]] == 3.0).all()
        assert torch.equal(sent[k][names[1]], memory.server.stack[names[1]][3 - k])
    assert downloads.loads() == simulated.loads()
    for server in (memory.server, federation.server):
        assert isinstance(server, ServerState)
        assert server.state["round"] == 2
