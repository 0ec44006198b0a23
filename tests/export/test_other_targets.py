"""Exported models that give several labels of an example, or numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import factorized_fl as ffl
from factorized_fl.export.evaluate import evaluate_model
from factorized_fl.export.predict import predict
from tests.own.nets import rows, table_net
from tests.test_cli import ffl as command


def clients_of(targets: Any) -> list[ffl.ClientData]:
    rng = np.random.default_rng(0)
    x = rows(rng, np.arange(20) % 5)
    return [ffl.ClientData(x, targets(rng), test=(x[:6], targets(rng)[:6]), classes=["mass", "age"]) for _ in range(2)]


CASES = {
    "binary": lambda rng: rng.integers(0, 2, (20, 2)).astype(np.float32),
    "squared-error": lambda rng: rng.normal(size=(20, 2)),
}


@pytest.mark.parametrize("loss", CASES)
def test_a_model_of_labels_or_numbers_is_exported_and_predicts(
    loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"model": table_net, "loss": loss, "rounds": 1, "epochs": 1, "batch_size": 4, "method": "fedavg"}
    run = ffl.run(clients_of(CASES[loss]), tmp_path / "run", **settings)
    exported = ffl.export(run, 1)
    client = run.scenario.clients[0]
    x, y = run.scenario.images[client.test], run.scenario.labels[client.test]
    outputs = run.model(1)(x).detach().double()
    np.save(tmp_path / "x.npy", x.numpy())
    for runtime in ("onnx", "torch"):
        found = predict(exported.folder, [tmp_path / "x.npy"], runtime, table_net)
        wanted = outputs if loss == "squared-error" else outputs.sigmoid()
        got = [[dict(each.classes)["mass"], dict(each.classes)["age"]] for each in found]
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), wanted, rtol=0, atol=1e-5)
    about = json.loads((exported.folder / "model.json").read_text())
    card = (exported.folder / "README.md").read_text()
    if loss == "squared-error":
        assert about["targets"] == "numbers"
        assert about["results"]["metrics"]["mae"] == pytest.approx(float((outputs - y).abs().mean()), abs=1e-6)
        assert 'for 2 numbers: "mass", "age".' in card
    else:
        assert about["targets"] == "labels"
        right = float(((outputs > 0) == (y > 0.5)).double().mean())
        assert about["results"]["metrics"]["accuracy"] == pytest.approx(right)
        assert "for 2 labels, of which an example may have several" in card
    with pytest.raises(ffl.UserError, match=f"gives {about['targets']}, and these metrics are those of classes"):
        evaluate_model(exported.folder, tmp_path)
    network = [str(exported.folder), tmp_path / "x.npy", "--runtime", "onnx"]
    _, said, _ = command(capsys, "predict", *network)
    assert ("%" in said) == (loss == "binary")
    assert said.count("mass") == 6
