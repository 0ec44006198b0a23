"""Optimisers, schedules, clipping, averaged weights and augmentation: as in a plain loop, kept by client, resumed."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import factorized_fl as ffl
from factorized_fl.core.seeds import torch_rng
from factorized_fl.engine.optimizers import torch_optimizers
from factorized_fl.engine.schedules import SCHEDULES
from factorized_fl.engine.training import clipped
from factorized_fl.simulate.run import Stopped
from tests.own.nets import byte_images, own_clients, table_net
from tests.own.test_every_method import StopAfter

QUICK: dict[str, Any] = {"model": table_net, "method": "stand-alone", "rounds": 3, "epochs": 2, "batch_size": 4}


class Free(torch.optim.Optimizer):
    """Keeps a number in its group, one in each parameter's state, and a tensor of another shape."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": 0, "unchanged": 7})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["seen"] = state.get("seen", 0) + 1
                state["rows"] = (
                    state.get("rows", torch.zeros(len(p))) + p.grad.reshape(len(p), -1).sum(1) / group["count"]
                )
                p.sub_(group["lr"] * state["rows"].view(-1, *[1] * (p.dim() - 1)) / state["seen"])


def halves(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": lr / 2}]
    return torch.optim.Adam(groups, lr=lr, amsgrad=True)


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "adamw": ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=1e-6)),
    "rprop": ("rprop", lambda p: torch.optim.Rprop(p, lr=0.01)),
    "adagrad": ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.01, weight_decay=1e-6)),
    "class": (torch.optim.RMSprop, lambda p: torch.optim.RMSprop(p, lr=0.01)),
    "partial": (
        functools.partial(torch.optim.SGD, momentum=0.5, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.5, nesterov=True),
    ),
    "groups": (halves, lambda p: halves(p, 0.01)),
    "own": (Free, lambda p: Free(p, 0.01)),
    "sgd": ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-6)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_in_a_plain_loop(name: str, tmp_path: Path) -> None:
    chosen, build = OPTIMIZERS[name]
    clients = own_clients()
    settings = {**QUICK, "lr": 0.01, "optimizer": chosen, "schedule": lambda done: 1 - done / 2, "clip_norm": 0.05}
    run = ffl.run(clients, tmp_path / "run", **settings)
    run = ffl.run(clients, tmp_path / "run", resume=True, **settings)
    scenario = run.scenario
    fresh = ffl.run(clients, tmp_path / "fresh", **{**settings, "rounds": 1, "lr": 1e-30, "optimizer": "sgd"})
    for k in (0, 1):
        model = fresh.model(k + 1)
        optimizer = build(list(model.parameters()))
        base = [group["lr"] for group in optimizer.param_groups]
        train = scenario.clients[k].train
        steps = 0
        for round_number in (1, 2, 3):
            rng = torch_rng(1, "train", round_number, k)
            for _ in range(2):
                order = train[torch.randperm(len(train), generator=rng)]
                for first in range(0, len(order) - 3, 4):
                    chosen_now = order[first : first + 4]
                    for group, lr in zip(optimizer.param_groups, base, strict=True):
                        group["lr"] = lr * (1 - steps / 18 / 2)
                    optimizer.zero_grad()
                    cross_entropy(model(scenario.images[chosen_now]), scenario.labels[chosen_now]).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                    optimizer.step()
                    steps += 1
        assert steps == 18
        for ours, theirs in zip(run.model(k + 1).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "ema", "augment"])
@pytest.mark.parametrize("method", ["fedavg", "factorized-peers"])
def test_a_resumed_run_equals_an_unbroken_one(name: str, method: str, tmp_path: Path) -> None:
    own = {"optimizer": OPTIMIZERS[name][0]} if name in OPTIMIZERS else {"ema": 0.8, "optimizer": "nadam"}
    own |= {"augment": lambda x, generator: x + 0.1 * torch.randn(x.shape, generator=generator)}
    settings = {**QUICK, "rounds": 2, "lr": 0.01, "method": method, "schedule": "cosine", **own}
    whole = ffl.run(own_clients(), tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        ffl.run(own_clients(), tmp_path / "parts", observers=[StopAfter(1)], **settings)
    parts = ffl.run(own_clients(), tmp_path / "parts", resume=True, **settings)
    assert whole.metrics() == parts.metrics()
    first, second = (safetensors.torch.load_file(run.checkpoint_path) for run in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    kept = {key.split("/")[0] for key in first}
    assert ("optimizer" in kept, "momentum" in kept) == ((False, True) if name == "sgd" else (True, False))
    assert ("average" in kept) == (name in ("ema", "augment"))


def test_state_belongs_to_the_client_and_only_what_changes_is_kept(tmp_path: Path) -> None:
    run = ffl.run(own_clients(), tmp_path / "run", optimizer=Free, lr=0.01, **QUICK)
    kept = {k: t for k, t in safetensors.torch.load_file(run.checkpoint_path).items() if k.startswith("optimizer")}
    names = {name.split("/")[-1] for name in kept}
    assert names == {"ready", "seen#int", "rows", "count#int"}
    assert kept["optimizer//all/group 0/count#int"].tolist() == [18, 18, 18]
    rows = kept["optimizer//all/0.weight/rows"]
    assert rows.shape == (3, 8)
    assert not torch.equal(rows[0], rows[1])


def test_every_optimizer_of_torch_that_needs_only_gradients_has_a_name() -> None:
    assert {"adamw", "adam", "rmsprop", "adagrad", "nadam", "radam", "sgd"} <= torch_optimizers().keys()
    assert "lbfgs" not in torch_optimizers()


def test_averaged_weights_are_those_of_the_rounds_steps(tmp_path: Path) -> None:
    """With a weight of 0.5: the last three of three steps weigh 1, 2 and 4 sevenths."""
    settings = {**QUICK, "rounds": 1, "epochs": 1, "lr": 0.1}
    (client,) = own_clients()[:1]
    seen: list[Tensor] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            seen.append(self.param_groups[0]["params"][0].detach().clone())

    run = ffl.run([client], tmp_path / "run", ema=0.5, optimizer=Noting, **settings)
    weights = seen[-3:]
    wanted = (weights[0] + 2 * weights[1] + 4 * weights[2]) / 7
    torch.testing.assert_close(run.model(1)[0].weight.detach(), wanted)
    scores = run.model(1)(run.scenario.images[run.scenario.clients[0].test])
    right = int((scores.argmax(1) == run.scenario.labels[run.scenario.clients[0].test]).sum())
    assert run.summary()["clients"][0]["correct"] == right


def test_own_augmentation_sees_images_from_zero_to_one_and_not_the_test(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def darker(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(x.clone())
        return x * torch.rand(len(x), 1, 1, 1, generator=generator)

    clients = own_clients(byte_images)
    run = ffl.run(clients, tmp_path / "run", **{**QUICK, "model": "cnn", "rounds": 1, "augment": darker})
    assert run.config().augment.endswith("darker")
    assert len(seen.pop(0)) == 2  # it was tried before the first round
    assert len(seen) == 18
    assert 0 <= min(float(x.min()) for x in seen) < max(float(x.max()) for x in seen) <= 1
    plain = ffl.run(clients, tmp_path / "plain", **{**QUICK, "model": "cnn", "rounds": 1, "augment": "none"})
    assert plain.metrics() != run.metrics()


def test_schedules_begin_at_one_and_end_at_zero() -> None:
    for name in ("cosine", "linear", "warm-up-cosine"):
        assert SCHEDULES[name](1.0) == pytest.approx(0, abs=1e-12)
    assert SCHEDULES["cosine"](0) == SCHEDULES["linear"](0) == SCHEDULES["constant"](0.7) == 1
    assert SCHEDULES["warm-up-cosine"](0.05) == 1
    assert 0 < SCHEDULES["warm-up-cosine"](0) < 0.1


def test_a_gradient_is_scaled_over_all_parameters() -> None:
    gradient = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    assert clipped(gradient, 0) is gradient
    assert clipped(gradient, 1)["a"].item() == pytest.approx(0.6, abs=1e-6)
    assert clipped(gradient, 10)["b"].item() == 4


def nothing(parameters: Any, lr: float) -> torch.optim.Optimizer:
    found = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=lr)
    found.param_groups[0]["params"] = []
    return found


def elsewhere(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=lr)


class Late(torch.optim.SGD):
    """Has more state from its second step on."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["new" if self.state[parameter] else "first"] = torch.zeros(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamwv"}, "Unknown optimizer 'adamwv'. Did you mean 'adamw'"),
        ({"optimizer": 3}, "optimizer = 3 must be a name, a class or function"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, "optimizer = an object of type SGD"),
        ({"optimizer": lambda p, lr: 1 / 0}, "optimizer .* cannot be made .ZeroDivisionError"),
        ({"optimizer": lambda p, lr: None}, "optimizer .* is a NoneType: return a torch.optim.Optimizer"),
        ({"optimizer": lambda p, lr: torch.optim.Adam([], lr=lr)}, "optimizer got an empty parameter list"),
        ({"optimizer": nothing}, "has none of the parameters that it is called with: pass them to it"),
        ({"optimizer": elsewhere}, "has none of the parameters that it is called with: pass them to it"),
        ({"optimizer": "muon"}, "The optimizer muon cannot be made .ValueError: Muon only supports 2D"),
        ({"optimizer": torch.optim.LBFGS}, "The optimizer .*LBFGS fails in its first step"),
        ({"optimizer": Late}, "changed the entry '0.weight/new' of its state"),
        ({"schedule": "cos"}, "Unknown schedule 'cos'. Did you mean 'cosine'"),
        ({"schedule": lambda done: math.nan}, "schedule .* returns nan at 0 of the run"),
        ({"schedule": lambda done: 0.5 - done}, "returns -0.01 at 0.51 of the run"),
        ({"schedule": lambda done: None}, "schedule .* fails at 0 of the run .TypeError"),
        ({"augment": "mirror"}, "augment = 'mirror' must be one of paper, none, or a function 'package.module:name'"),
        ({"augment": "no.module:f"}, "The augment 'no.module:f' cannot be imported"),
        ({"augment": lambda x, generator: x[:1]}, r"augmentation .* returns torch.float32 \[1, 5\] for .*\[2, 5\]"),
        ({"augment": lambda x, generator: 1 / 0}, r"augmentation .* fails for \[2, 5\] .ZeroDivisionError"),
        ({"ema": 1.0}, "ema = 1.0 must be at most"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0 must be at least 0"),
    ],
)
def test_bad_choices_of_training_are_refused_in_a_sentence(settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match=message) as caught:
        ffl.run(own_clients(), tmp_path / "run", **{**QUICK, "lr": 0.01, **settings})
    assert "\n" not in str(caught.value)
    if settings.get("optimizer") is not Late:
        assert not (tmp_path / "run").exists()
