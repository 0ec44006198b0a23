"""A method that cannot serve a network or a task is refused before training, with methods that can."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import factorized_fl as ffl
from tests.own.nets import own_clients, table_net


@pytest.mark.parametrize("method", ["knn-per", "fedproto"])
def test_a_method_that_needs_a_linear_classifier_refuses_another(method: str, tmp_path: Path) -> None:
    def net(example: Tensor, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 4, 1), nn.Conv1d(4, outputs, 1), nn.Flatten())

    with pytest.raises(ffl.UserError, match=f"ends in a Conv1d, but {method} needs one that ends in a Linear"):
        ffl.run(own_clients(outputs=(3, 3, 3), named=True), model=net, method=method, out=tmp_path / "run")


def linear(example: Tensor, outputs: int) -> nn.Module:
    return nn.Linear(5, outputs)


def normalised(example: Tensor, outputs: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, outputs))


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        ("fedbn", table_net, "fedbn keeps normalisation layers at home, but the network has none: use fedavg"),
        ("factorized-fl", normalised, "no factorised layer before its head, .*: put one there, or choose fedavg"),
        ("factorized-peers", linear, "compares images by a layer before the classifier, .*: put a layer .*, or choose"),
        ("fedrep", linear, "With fedrep clients would share nothing: .*, or use stand-alone"),
    ],
)
def test_a_network_that_a_method_cannot_use_is_refused_with_methods_that_can(
    method: str, model: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ffl.UserError, match=message):
        ffl.run(own_clients(), model=model, method=method, out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_classifier_without_a_body_trains_alone(tmp_path: Path) -> None:
    run = ffl.run(own_clients(), model=linear, method="stand-alone", out=tmp_path / "run", rounds=1, batch_size=4)
    assert run.summary()["up_bytes"] == 0


@pytest.mark.parametrize("method", ["knn-per", "fedproto"])
@pytest.mark.parametrize(("loss", "columns"), [("squared-error", 1), ("binary", 2)])
def test_a_method_that_needs_classes_refuses_numbers_and_several_labels(
    method: str, loss: str, columns: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(2):
        y = rng.integers(0, 2, (12, columns)).astype(np.float32)
        clients.append(ffl.ClientData(rng.normal(size=(12, 5)), y, test=(rng.normal(size=(12, 5)), y)))
    with pytest.raises(ffl.UserError, match=f"{method} needs a class for each example: choose fedavg or any other .* "):
        ffl.run(clients, model=table_net, method=method, loss=loss, out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def flat(example: Tensor, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(example[0].numel(), 4), nn.ReLU(), nn.Linear(4, outputs))


@pytest.mark.parametrize(
    ("method", "message"),
    [("fedbn", "the network has none"), ("fedap", "the network has none"), ("fedproto", "number their classes differ")],
)
def test_a_comparison_is_refused_before_its_first_run(method: str, message: str, tmp_path: Path) -> None:
    out, model = tmp_path / "out", f"{__name__}:flat"
    with pytest.raises(ffl.UserError, match=message):
        ffl.compare("demo", ["fedavg", method], [1], out=out, model=model, rounds=1, images_per_client=20)
    assert not out.exists()
