"""Differentially private steps: by hand on two examples, against a loop, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from factorized_fl.config import Config, from_table, resolve
from factorized_fl.core.errors import UserError
from factorized_fl.engine.private import PrivateGradient, clipped_sum, per_example
from factorized_fl.methods import METHODS, coverable
from factorized_fl.methods.fingerprints import describe_privately
from factorized_fl.nn import factorize
from factorized_fl.protect.budget import Budget
from factorized_fl.protect.draws import Draws
from factorized_fl.sections import flatten, nest
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.own.nets import GroupNormCNN
from tests.simulate.test_run import StopIn
from tests.tiny import TABLE, tiny_scenario, write_folder

NET = "tests.own.nets:GroupNormCNN"
PRIVATE = {name: value for name, value in TABLE.items() if name != "width"} | {"model": NET, "privacy_epsilon": 8.0}


def private_config(method: str = "fedavg", **settings: Any) -> Config:
    return from_table({**PRIVATE, "method": method, **settings})


def private_federation(method: str = "fedavg", **settings: Any) -> Federation:
    config = private_config(method, **settings)
    return build_federation(config, tiny_scenario(config), torch.device("cpu"))


# -- by hand


def test_two_gradients_are_clipped_together_over_all_tensors() -> None:
    """The first has norm 5 and is scaled to 1, the second has norm 0.5 and stays as it is."""
    gradients = {"w": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([4.0, 0.4])}
    total = clipped_sum(gradients, 1.0)
    torch.testing.assert_close(total["w"], torch.tensor([0.6 + 0.3, 0.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(total["b"], torch.tensor(0.8 + 0.4), rtol=1e-5, atol=0)
    alone = clipped_sum({name: g[:1] for name, g in gradients.items()}, 1.0)
    assert float(torch.stack([g.double().square().sum() for g in alone.values()]).sum()) <= 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_an_example_whose_gradient_is_not_finite_does_not_exceed_the_limit(bad: float) -> None:
    total = clipped_sum({"w": torch.tensor([[bad, 1.0], [0.0, 0.5]])}, 1.0)["w"]
    assert total.isfinite().all()
    assert float((total - torch.tensor([0.0, 0.5])).norm()) <= 1.0


class Line(nn.Module):
    """One weight: the loss (w x - y)^2 has the gradient 2 x (w x - y)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Fixed:
    """Random numbers by hand: the first example is sampled, the second is not; noise is 3."""

    def uniform(self, name: str, count: int) -> Tensor:
        return torch.tensor([0.4, 0.6])[:count] if name == "sample" else torch.zeros(count)

    def normal(self, name: str, shape: Any) -> Tensor:
        return torch.full(tuple(shape), 3.0, dtype=torch.float64)


@pytest.mark.parametrize(("rate", "wanted"), [(0.5, [0.5]), (0.7, [0.5, 1.0]), (0.1, [])])
def test_a_step_samples_clips_and_adds_noise_as_by_hand(rate: float, wanted: list[float]) -> None:
    """Examples (1, 1.75) and (1, 0) have gradients 0.5 and 4, which is clipped to 1. Noise 2 x clip 1 x draw 3 is 6."""
    step = object.__new__(PrivateGradient)
    plan = type("P", (), {"rate": rate})()
    step.budget = type(
        "B", (), {"draws": lambda self, k: Fixed(), "clip": 1.0, "noise": torch.tensor([2.0]), "plans": [plan]}
    )()
    inputs, targets = torch.tensor([[1.0], [1.0]]), torch.tensor([[1.75], [0.0]])
    loss = type("L", (), {"mean": staticmethod(lambda out, y, weights: (out - y).square().mean())})
    step.engine = type(
        "E",
        (),
        {
            "config": private_config(),
            "inputs": type("I", (), {"augmented": lambda self, some, drawn, own: inputs[some]})(),
            "labels": lambda self, k, some: targets[some],
            "task": type("T", (), {"loss": loss}),
            "one_by_one": set(),
        },
    )()
    step.model, step.k, step.names, step.positions = Line(), 0, ["w"], torch.arange(2)
    found = step({"w": step.model.w}, None)["w"]  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor([(sum(wanted) + 6.0) / (2 * rate)]))


# -- gradients of single examples


class Recurrent(nn.Module):
    """A recurrent network, which vmap cannot take."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


def dense() -> nn.Module:
    torch.manual_seed(0)
    return GroupNormCNN(torch.zeros(1, 1, 8, 8), 3)


@pytest.mark.parametrize("factorised", [False, True])
def test_gradients_at_once_equal_a_loop_also_of_factors(factorised: bool) -> None:
    model = dense()
    if factorised:
        factorize(model, generator=torch.Generator().manual_seed(1))
    at = {name: p for name, p in model.named_parameters() if not name.startswith("head.bias")}
    examples, targets = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 1])
    together, in_turn = per_example(model, lambda out, y, w: nn.functional.cross_entropy(out, y), {})
    detached = {name: tensor.detach() for name, tensor in at.items()}
    at_once, one_by_one = together(detached, examples, targets), in_turn(detached, examples, targets)
    assert factorised == any(name.endswith("0.u") for name in at_once)
    for name, tensor in at_once.items():
        torch.testing.assert_close(tensor, one_by_one[name], rtol=1e-4, atol=1e-6)
    batch = nn.functional.cross_entropy(model(examples), targets)
    for name, wanted in zip(at, torch.autograd.grad(batch, list(at.values())), strict=True):
        torch.testing.assert_close(at_once[name].mean(0), wanted, rtol=1e-4, atol=1e-6)


def test_a_network_that_cannot_be_computed_at_once_takes_the_loop() -> None:
    torch.manual_seed(0)
    model = Recurrent()
    examples, targets = torch.randn(3, 6, 4), torch.tensor([0, 1, 2])
    _, in_turn = per_example(model, lambda out, y, w: nn.functional.cross_entropy(out, y), {})
    at = {name: p.detach() for name, p in model.named_parameters()}
    found = in_turn(at, examples, targets)
    loss = nn.functional.cross_entropy(model(examples), targets)
    for (name, p), wanted in zip(
        model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(found[name].mean(0), wanted, rtol=1e-4, atol=1e-6)
        assert found[name].shape == (3, *p.shape)


# -- federations


def test_methods_that_take_gradient_steps_alone_keep_their_budget() -> None:
    assert {"stand-alone", "fedavg", "factorized-fl", "factorized-peers", "ditto", "apfl", "scaffold"} <= {*coverable()}
    for method, settings in (("factorized-peers", {}), ("apfl", {}), ("scaffold", {"momentum": 0.0})):
        federation = private_federation(method, rounds=2, **settings)
        epsilons = []
        for round_number in (1, 2):
            records, _ = run_round(federation, round_number)
            epsilons.append([record["epsilon"] for record in records])
            assert all(record["train_loss"] is None for record in records)
        assert all(0 < first < second <= 8.0 for first, second in zip(*epsilons, strict=True))
        assert all(tensor.isfinite().all() for tensor in federation.clients.state.common.values())


def test_what_is_trained_does_not_depend_on_an_example_beyond_its_clipped_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without noise, one step of two federations that differ in one example differs by at most 2 clip lr / B."""
    monkeypatch.setattr(Draws, "normal", lambda self, name, shape: torch.zeros(*shape))
    moved = []
    for altered in (False, True):
        config = private_config(rounds=1, momentum=0.0, lr=1.0, batch_size=18, privacy_clip=0.01, weight_decay=0.0)
        scenario = tiny_scenario(config)
        if altered:
            scenario.images[scenario.clients[0].train[0]] = 255 - scenario.images[scenario.clients[0].train[0]]
        federation = build_federation(config, scenario, torch.device("cpu"))
        before = {name: tensor.clone() for name, tensor in federation.clients.state.client(0).items()}
        run_round(federation, 1)
        moved.append({n: t - before[n] for n, t in federation.clients.state.client(0).items()})
    change = torch.cat([(moved[0][name] - moved[1][name]).flatten() for name in moved[0]]).norm()
    assert 0 < float(change) <= 2 * 0.01 / 18 * (1 + 1e-4)


def test_a_spent_budget_ends_training() -> None:
    federation = private_federation("fedavg", rounds=1)
    budget = federation.budget
    assert budget is not None
    (trained,) = run_and_reserve(federation, 2)
    assert trained.steps == 2
    while budget.reserve(0, 1):
        pass
    before = {name: tensor.clone() for name, tensor in federation.clients.state.client(0).items()}
    (trained,) = run_and_reserve(federation, 0)
    assert trained.steps == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.clients.state.client(0).items())
    assert 7.5 < budget.spent(0) <= 8.0


def run_and_reserve(federation: Federation, steps: int) -> list[Any]:
    assert federation.budget is not None
    federation.budget.reserve(0, steps)
    return list(federation.clients.train(1, [0], federation.engine).values())


def test_resumed_private_runs_are_equal_and_reserve_no_step_twice(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images")
    config = private_config("factorized-peers", rounds=2)
    whole = run_federation(config, tmp_path / "whole", data=images)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "part", data=images, observers=[StopIn(2)])
    part = run_federation(config, tmp_path / "part", data=images, resume=True)
    assert part.metrics() == whole.metrics()
    one, two = whole.load_checkpoint(), part.load_checkpoint()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


# -- the fingerprint


def test_statistics_of_two_images_are_a_mean_direction_with_noise() -> None:
    """Moments (3, 16) and (0, 1) give the directions (0.6, 0.8) and (0, 1); noise 5 for a sensitivity of 1 / 2."""
    rows = torch.tensor([[3.0, 16.0], [0.0, 1.0]])
    quiet = describe_privately(rows, 0.0, lambda shape: torch.zeros(list(shape)))
    torch.testing.assert_close(quiet[:2], torch.tensor([0.3, 0.9]))
    torch.testing.assert_close(quiet[2], torch.tensor((1 - 0.9) / 2))  # of the mean: (1 - |mean|^2) / n
    loud = describe_privately(rows, 5.0, lambda shape: torch.ones(list(shape)))
    torch.testing.assert_close(loud[:2], torch.tensor([0.3 + 2.5, 0.9 + 2.5]))
    assert float(loud[2]) >= 2 * 2.5**2


@pytest.mark.parametrize("odd", [[1e30, 1e36], [float("nan"), 1.0], [0.0, 0.0], [-5.0, 1e-9]])
def test_one_image_moves_the_statistics_by_at_most_one_in_n(odd: list[float]) -> None:
    others = [[3.0, 16.0], [0.5, 1.0], [1.0, 4.0]]
    nothing = describe_privately(torch.tensor([*others, [0.0, 0.0]]), 0.0, lambda shape: torch.zeros(list(shape)))
    found = describe_privately(torch.tensor([*others, odd]), 0.0, lambda shape: torch.zeros(list(shape)))
    assert float((found - nothing)[:2].norm()) <= 1 / 4 + 1e-6


# -- refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"align": "statistics"}, "align = 'statistics' sends statistics"),
        ({"oracle": "groups"}, "oracle = 'groups' uses images without noise"),
        ({"loss": "balanced-cross-entropy"}, "Weights of classes make one example count more"),
        ({"class_weights": (1.0, 2.0)}, "Weights of classes make one example count more"),
        ({"augment": "tests.own.nets:flip"}, "may mix the examples of a batch"),
        ({"method": "factorized-peers", "options": {"blur": 0.1}}, "blur has no effect with privacy_epsilon"),
        ({"privacy_epsilon": 0.0, "privacy_clip": 2.0}, "privacy_clip = 2 has no effect without a budget"),
        ({"privacy_epsilon": 0.0, "privacy_delta": 1e-6}, "privacy_delta = 1e-06 has no effect without a budget"),
        ({"method": "fedper", "options": {"tune_epochs": 1}}, "fedper uses images otherwise than in gradient steps"),
        ({"method": "per-fedavg", "options": {"test": "adapted"}}, "per-fedavg uses images otherwise"),
    ],
)
def test_what_a_budget_does_not_cover_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        private_config(**settings)


def test_methods_that_use_images_in_other_ways_are_refused_with_those_that_work() -> None:
    refused = {name for name in METHODS if name not in coverable()}
    assert refused == {"fedfomo", "fedala", "fedap", "fedbabu", "ifca", "knn-per", "pacfl", "fedproto"}
    for name in refused:
        with pytest.raises(UserError, match=r"does not cover\. Methods that work: stand-alone, fedavg,"):
            private_config(name)


def test_the_views_of_a_private_client_hold_no_images() -> None:
    federation = private_federation("fedavg")
    seen = []

    def look(local: Any, parameters: Any, batches: Any) -> Any:
        seen.append([len(batch.images) for batch in batches])
        for view in (local.features, local.loss):
            with pytest.raises(UserError, match="not covered by its guarantee"):
                view({})
        return local.loss_gradient(parameters, batches[0])

    object.__setattr__(federation.method, "gradient", look)
    run_round(federation, 1)
    assert seen
    assert all(count == 0 for counts in seen for count in counts)


@pytest.mark.parametrize(("net", "kind"), [("SeriesNet", "BatchNorm1d")])
def test_batchnorm_is_refused_with_the_remedy(net: str, kind: str) -> None:
    from factorized_fl.engine.private import refuse_shared_statistics
    from tests.own import nets

    model = getattr(nets, net)(torch.zeros(1, 2, 20), 3)
    with pytest.raises(UserError, match=rf"has {kind} at 'norm'.*use a network with GroupNorm, or freeze the part"):
        refuse_shared_statistics(model, net)
    model.norm.requires_grad_(False)
    refuse_shared_statistics(model, net)
    model.norm.running_mean = None
    with pytest.raises(UserError, match="mix the examples of a batch"):  # statistics of each batch, also when frozen
        refuse_shared_statistics(model, net)
    config = from_table({**TABLE, "method": "fedavg", "privacy_epsilon": 8.0})
    scenario = tiny_scenario(config)
    with pytest.raises(UserError, match=r"has BatchNorm2d at 'conv1\.norm'"):
        build_federation(config, scenario, torch.device("cpu"))


# -- configuration


def test_the_table_of_a_file_and_settings_with_a_dot_name_the_same_options() -> None:
    flat = {"method": "fedavg", "privacy_epsilon": 3.0, "privacy_delta": 1e-6, "privacy_clip": 0.5}
    nested = nest(flat)
    assert nested["privacy"] == {"epsilon": 3.0, "delta": 1e-6, "clip": 0.5}
    assert flatten(nested) == {**flat, "options": {}}
    config = resolve({"dataset": "embedded"}, "fedavg", {"privacy.epsilon": 3.0, "privacy.clip": 0.5})
    assert (config.privacy_epsilon, config.privacy_clip) == (3.0, 0.5)


def test_noise_of_a_budget_does_not_follow_from_the_agreement() -> None:
    """Two sites with the same agreement and other secrets draw other noise and other samples."""
    config = private_config("factorized-peers", rounds=1)
    ends = []
    for secret in (1, 1, 2):
        federation = build_federation(config, tiny_scenario(config), torch.device("cpu"), noise_seed=secret)
        run_round(federation, 1)
        ends.append(federation.clients.state.client(0))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not any(torch.equal(ends[0][name], ends[2][name]) for name in ends[0] if name != "head.bias")


def test_budget_is_the_type_that_engines_are_given() -> None:
    federation = private_federation("fedavg")
    assert isinstance(federation.budget, Budget)
    assert federation.work.budget is federation.budget
