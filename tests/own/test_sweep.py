"""Sweeps: every combination once, resumed, in processes as in one, and the best by validation examples."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import factorized_fl as ffl
from factorized_fl.core.errors import UserError
from factorized_fl.data.clients import own_scenario
from factorized_fl.simulate import own
from tests.own.nets import own_clients, table_net

QUICK: dict[str, Any] = {"model": table_net, "epochs": 1, "batch_size": 4, "rounds": 1}
GRID = {"lr": [1e-6, 0.1], "method": ["fedavg", "stand-alone"]}


def test_a_sweep_runs_each_combination_once(tmp_path: Path) -> None:
    found = ffl.sweep(own_clients(), GRID, seeds=[1, 2], out=tmp_path, **QUICK)
    assert [row.settings for row in found.rows] == [
        {"lr": lr, "method": m} for lr in GRID["lr"] for m in GRID["method"]
    ]
    assert found.best.score == max(row.score or 0.0 for row in found.rows)
    assert sum(entry["best"] for entry in found.table()) == 1
    folder = found.rows[0].folders[2]
    config = ffl.configure(folder / "config.toml")
    assert (config.seed, config.score, config.lr) == (2, "validation", 1e-6)
    assert repr(found).splitlines()[0].split() == ["lr", "method", "score", "spread", "best"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert len(written) == 8
    again = ffl.sweep(own_clients(), GRID, seeds=[1, 2], out=tmp_path, **QUICK)
    assert again.table() == found.table()
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    pytest.importorskip("pandas")
    assert len(found.to_pandas()) == 4


def test_processes_give_the_same_and_need_nothing_that_can_be_imported(tmp_path: Path) -> None:
    def net(example: torch.Tensor, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(example.shape[1], 4), torch.nn.ReLU(), torch.nn.Linear(4, outputs))

    settings = {**QUICK, "model": net, "method": "fedavg"}
    grid = {"lr": [0.01, 0.1, 0.2]}
    one = ffl.sweep(own_clients(), grid, out=tmp_path / "one", **settings)
    two = ffl.sweep(own_clients(), grid, jobs=2, out=tmp_path / "two", **settings)
    assert one.table() == two.table()


def test_the_error_of_a_process_is_the_error_of_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Unknown method 'fedavgg'"):
        ffl.sweep(own_clients(), {"method": ["fedavg", "fedavgg"]}, jobs=2, out=tmp_path, **QUICK)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"grid": {}}, "grid must name settings with lists of values"),
        ({"grid": {"lr": 0.1}}, "grid must name settings with lists of values"),
        ({"grid": {"rounds": [1]}}, "'rounds' is in the grid and is also an argument"),
        ({"grid": {"seed": [1]}}, "'seed' is in the grid and is also an argument"),
        ({"grid": {"lr": [0.1]}, "seeds": [1, 1]}, "must be different numbers"),
        ({"grid": {"lr": [0.1]}, "seeds": 1}, "seeds = 1 must be different numbers"),
        ({"grid": {"lr": [0.1]}, "jobs": 0}, "jobs = 0 must be 1 or more"),
    ],
)
def test_what_cannot_be_swept_is_named(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        ffl.sweep(own_clients(), **arguments, out=tmp_path, **QUICK)


def test_nothing_keeps_the_data_of_a_run_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over runs in one process otherwise holds the data of all of them."""
    held = []

    def noted(*given: Any, **named: Any) -> Any:
        scenario = own_scenario(*given, **named)
        held.append(weakref.ref(scenario))
        return scenario

    monkeypatch.setattr(own, "own_scenario", noted)
    settings = {"model": table_net, "rounds": 1, "epochs": 1, "batch_size": 4, "class_weights": [1.0, 2.0]}
    ffl.run(own_clients(outputs=(2, 2), named=True), tmp_path / "run", method="fedavg", **settings)
    gc.collect()
    assert [reference() for reference in held] == [None]
