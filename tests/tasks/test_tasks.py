"""Losses and metrics of a run: what training minimises, what a run records, what carries the verdict."""

import base64
import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import factorized_fl as ffl
from factorized_fl.report.collect import collect
from factorized_fl.report.tables import result_table
from factorized_fl.results.effect import measure_effect
from factorized_fl.results.reading import read_run
from factorized_fl.tasks.task import make_task
from tests.own.nets import own_clients, rows, table_net

QUICK: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch_size": 4, "lr": 0.02, "method": "fedavg"}


def numbers(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    x = rng.normal(0, 1, (count, 5))
    return x, x[:, 0] - x[:, 1]


def labels(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    x = rng.normal(0, 1, (count, 5))
    return x, (x[:, :3] > 0).astype(int)


def clients_of(make: Any, count: int = 30) -> list[ffl.ClientData]:
    return [ffl.ClientData(*make(rng, count), test=make(rng, 20)) for rng in map(np.random.default_rng, range(3))]


def test_every_loss_is_the_formula_of_torch() -> None:
    outputs, classes = torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 1, 2])

    def task(loss: str, targets: Tensor, weights: tuple[float, ...] = ()) -> Any:
        return make_task(loss, (), weights, targets, [3], {})

    plain = task("cross-entropy", classes)
    assert plain.weights(3, classes) is None
    assert torch.equal(plain.loss.mean(outputs, classes, None), F.cross_entropy(outputs, classes))
    balanced = task("balanced-cross-entropy", classes).weights(3, classes)
    assert torch.allclose(balanced, torch.tensor([6 / 9, 6 / 6, 6 / 3]))
    assert torch.allclose(task("balanced-cross-entropy", classes).weights(4, classes)[3], torch.tensor(1.0))
    weights = task("cross-entropy", classes, (1.0, 2.0, 3.0)).weights(3, classes)
    assert torch.equal(
        plain.loss.mean(outputs, classes, weights), F.cross_entropy(outputs, classes, torch.tensor([1.0, 2.0, 3.0]))
    )
    several = (outputs > 0).float()
    binary = task("binary", several)
    wanted = F.binary_cross_entropy_with_logits(outputs, several)
    assert torch.equal(binary.loss.mean(outputs, several, None), wanted)
    assert torch.allclose(binary.loss.total(outputs, several), 6 * wanted)
    error = task("squared-error", outputs + 1)
    assert torch.allclose(error.loss.mean(outputs, outputs + 2, None), torch.tensor(4.0))
    assert torch.allclose(error.loss.total(outputs, outputs + 2), torch.tensor(24.0))


@pytest.mark.parametrize(
    ("make", "loss", "metrics", "primary"),
    [
        (numbers, "squared-error", [], "r2"),
        (numbers, "squared-error", ["mae", "r2"], "mae"),
        (labels, "binary", [], "accuracy"),
        (labels, "binary", ["auroc", "macro-f1"], "auroc"),
    ],
)
@pytest.mark.parametrize("method", ["fedavg", "factorized-peers", "fedfomo"])
def test_other_tasks_than_classification_are_learnt(make, loss, metrics, primary, method, tmp_path: Path) -> None:
    if method != "fedavg" and metrics:
        pytest.skip("once is enough")
    settings = {**QUICK, "loss": loss, "metrics": metrics, "rounds": 3, "epochs": 6, "method": method}
    run = ffl.run(clients_of(make), tmp_path / "run", model=table_net, **settings)
    first, last = ([r for r in run.metrics() if r["round"] == number] for number in (1, 3))
    assert next(iter(last[0]["metrics"])) == primary
    assert sum(r["loss"] for r in last) < sum(r["loss"] for r in first)
    assert all(r["correct"] is None and r["accuracy"] is None and r["score_error"] > 0 for r in last)
    assert sum(r["score"] for r in last) > sum(r["score"] for r in first)
    assert run.summary()["metric"] == primary
    assert run.summary()["score_mean"] == pytest.approx(sum(r["score"] for r in last) / 3)
    assert ffl.report(run.path, tmp_path / "page.html").exists()


def test_the_primary_metric_carries_the_verdict(tmp_path: Path) -> None:
    """The same accuracies, but errors that are told apart."""
    settings = {**QUICK, "loss": "squared-error", "metrics": ["rmse"], "method": "stand-alone"}
    clients = clients_of(numbers)
    good = ffl.run(clients, tmp_path / "good", model=table_net, **{**settings, "epochs": 20})
    poor = ffl.run(clients, tmp_path / "poor", model=table_net, **{**settings, "lr": 1e-6})
    both = [read_run(run.path) for run in (good, poor)]
    effect = measure_effect([both[0]], [both[1]])
    assert effect is not None
    first = effect.clients[0]
    assert first.low > 0  # one seed names no client, but the interval of the test examples is above zero
    errors = [run.final[0]["score_error"] for run in both]
    assert first.margin == pytest.approx(1.96 * math.hypot(*errors), rel=2e-3)
    assert first.accuracy == pytest.approx(-good.summary()["clients"][0]["metrics"]["rmse"])
    assert re.match(r"\+[\d.]+ in -rmse \(95% interval \+[\d.]+ to ", effect.sentence)
    (page,) = collect([good.path], baseline=poor.path)["runs"]
    assert (page["metric"], page["share"]) == ("-rmse", False)
    assert page["headline"].startswith(f"Every client alone: {good.summary()['score_mean']:.4g} -rmse on average")
    curve = page["curves"]["score"]
    steps = np.frombuffer(base64.b64decode(curve["steps"]), dtype="<u2").reshape(len(clients), -1)[:, -1]
    scores = [result["accuracy"] for result in both[0].final]
    assert curve["low"] + curve["unit"] * steps == pytest.approx(scores, abs=curve["unit"])
    shown = io.StringIO()
    Console(file=shown).print(result_table(good.summary()))
    words = shown.getvalue()
    assert "-rmse" in words
    assert all(f"{score:.4g}" in words for score in scores)
    assert "accuracy" not in words


def test_own_functions_serve_as_loss_and_metrics(tmp_path: Path) -> None:
    def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")

    def confidence(outputs: Tensor, targets: Tensor) -> float:
        return float(outputs.softmax(1).amax(1).mean())

    top = ffl.Metric("wrong", lambda outputs, y: float((outputs.argmax(1) != y).float().mean()), higher_is_better=False)
    settings = {**QUICK, "model": table_net, "loss": smooth, "metrics": [top, confidence, "accuracy"]}
    clients = own_clients()
    run = ffl.run(clients, tmp_path / "run", **settings)
    assert run.config().metrics == (
        "wrong",
        "test_own_functions_serve_as_loss_and_metrics.<locals>.confidence",
        "accuracy",
    )
    result = run.summary()["clients"][0]
    assert result["score"] == -result["metrics"]["wrong"] == pytest.approx(result["accuracy"] - 1)
    (tmp_path / "run" / "summary.json").unlink()
    assert ffl.run(clients, tmp_path / "run", resume=True, **settings).summary()["clients"][0] == result
    with pytest.raises(ffl.UserError, match=r"loss '.*smooth' cannot be imported"):
        ffl.run(clients, tmp_path / "other", **{**settings, "loss": run.config().loss})


def test_more_metrics_beside_accuracy_change_nothing_else(tmp_path: Path) -> None:
    plain = ffl.run(own_clients(), tmp_path / "plain", model=table_net, **QUICK)
    more = ffl.run(own_clients(), tmp_path / "more", model=table_net, metrics=["accuracy", "macro-f1"], **QUICK)
    for one, other in zip(plain.metrics(), more.metrics(), strict=True):
        assert set(other.pop("metrics")) == {"accuracy", "macro-f1"}
        assert {**one, "scores": None} == {**other, "scores": None}  # these hold other metrics as well
    assert (plain.path / "right.safetensors").read_bytes() == (more.path / "right.safetensors").read_bytes()


def one_class() -> list[ffl.ClientData]:
    rng, y = np.random.default_rng(0), np.arange(12) % 2
    alike = np.zeros(4, dtype=int)
    tests = [(rows(rng, y), y), (rows(rng, alike), alike)]
    return [ffl.ClientData(rows(rng, y), y, test=test, name=name) for test, name in zip(tests, "AB", strict=True)]


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (own_clients, {"loss": "hinge"}, "Unknown loss 'hinge'"),
        (own_clients, {"loss": 3}, "loss = 3 must be a name, a function"),
        (
            own_clients,
            {"loss": "binary"},
            r"loss = 'binary' needs zeros and ones .* but here targets are whole numbers",
        ),
        (
            lambda: clients_of(numbers),
            {},
            "other numbers: give classes as whole numbers, or use loss = 'squared",
        ),
        (
            lambda: clients_of(labels),
            {},
            "zeros and ones as floats: give classes as whole numbers, or use loss = 'bi",
        ),
        (own_clients, {"metrics": ["auc"]}, "Unknown metric of this task 'auc'. Did you mean 'auroc'"),
        (own_clients, {"metrics": ["auroc", "auroc"]}, "has a name twice"),
        (own_clients, {"metrics": [3]}, "metrics = 3 must be a name, a function"),
        (one_class, {"metrics": ["auroc"]}, "auroc is undefined for B, whose test examples are all of one class"),
        (
            own_clients,
            {"class_weights": [1.0, 2.0]},
            "class_weights has 2 numbers, but there are clients with 3 classes",
        ),
        (one_class, {"class_weights": [1.0, 2.0]}, "class_weights needs clients that number the same classes alike"),
        (
            own_clients,
            {"class_weights": [1.0, 2.0], "loss": "balanced-cross-entropy"},
            "class_weights has no effect with loss",
        ),
        (
            own_clients,
            {"loss": lambda outputs, y: 3},
            "returns a int: .* 6 losses, .* this was tried for client 1",
        ),
        (own_clients, {"loss": lambda outputs, y: outputs}, r"returns \[6, 2\]: return a tensor of 6 losses"),
        (own_clients, {"loss": lambda outputs, y: outputs.detach().mean()}, "no gradient"),
        (own_clients, {"loss": lambda outputs, y: 1 / 0}, r"fails for outputs \[6, 2\] .*ZeroDivisionError"),
        (own_clients, {"metrics": [lambda outputs, y: "no"]}, "metric .* fails for outputs .*ValueError"),
    ],
)
def test_bad_losses_and_metrics_are_refused_in_a_sentence(clients, settings, message, tmp_path: Path) -> None:
    with pytest.raises(ffl.UserError, match=message) as caught:
        ffl.run(clients(), tmp_path / "run", model=table_net, **{**QUICK, **settings})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_labels_that_cannot_be_targets_are_refused() -> None:
    x = np.zeros((10, 5))
    for y, message in (
        (np.array([0.0, np.nan, *range(8)]), "Example 1 of the labels of client 1 is not finite"),
        (np.zeros((10, 2, 2)), r"labels of client 1 are float64 \[10, 2, 2\]"),
    ):
        with pytest.raises(ffl.UserError, match=message):
            ffl.run([ffl.ClientData(x, y)], model=table_net)
    with pytest.raises(ffl.UserError, match="but the label of an example is 2 numbers: give 2 names"):
        ffl.run([ffl.ClientData(x, np.zeros((10, 2)), classes=["a"])], model=table_net)
    with pytest.raises(
        ffl.UserError, match=r"labels of client 2 are classes, but the first client's are numbers .N, 1."
    ):
        ffl.run([ffl.ClientData(x, np.zeros(10)), ffl.ClientData(x, np.arange(10) % 2)], model=table_net)


def test_a_model_of_the_metric_stays_a_plain_module(tmp_path: Path) -> None:
    run = ffl.run(clients_of(numbers), tmp_path / "run", model=table_net, **{**QUICK, "loss": "squared-error"})
    assert isinstance(run.model(1), nn.Sequential)
    assert run.model(1)(torch.zeros(2, 5)).shape == (2, 1)
