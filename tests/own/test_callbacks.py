"""Callbacks, early stopping, trackers, and a finished run as text and as a table."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import factorized_fl as ffl
from factorized_fl.core.errors import UserError, flags_shown
from factorized_fl.simulate.run import Stopped
from tests.own.nets import own_clients, table_net

QUICK: dict[str, Any] = {"model": table_net, "method": "fedavg", "epochs": 1, "batch_size": 4, "lr": 0.05}


def test_a_function_sees_every_round(tmp_path: Path) -> None:
    seen: list[ffl.RoundState] = []
    run = ffl.run(own_clients(), tmp_path, rounds=3, callbacks=[seen.append], **QUICK)
    assert [(state.round_number, state.rounds) for state in seen] == [(1, 3), (2, 3), (3, 3)]
    assert [record["client"] for record in seen[-1].records] == list(range(1, len(run.clients()) + 1))
    summary = run.summary()
    assert summary is not None
    assert seen[-1].score == pytest.approx(summary["accuracy_mean"])
    assert seen[-1].train_loss is not None


def test_a_function_stops_the_run_after_one_more_round(tmp_path: Path) -> None:
    def stop(state: ffl.RoundState) -> None:
        if state.round_number == 2:
            state.stop()

    stopped = ffl.run(own_clients(), tmp_path / "stopped", rounds=9, callbacks=[stop], **QUICK)
    short = ffl.run(own_clients(), tmp_path / "short", rounds=3, **QUICK)
    ours, theirs = stopped.summary(), short.summary()
    assert ours is not None
    assert ours == theirs
    assert stopped.checkpoint_round() == 3
    assert stopped.model(1) is not None
    ffl.report(tmp_path / "stopped")


@pytest.mark.parametrize("killed", [2, 3])
def test_early_stopping_is_the_same_after_an_interruption(tmp_path: Path, killed: int) -> None:
    settings = {**QUICK, "rounds": 9, "lr": 1e-12}

    def kill(state: ffl.RoundState) -> None:
        if state.round_number == killed:
            raise Stopped

    whole = ffl.run(own_clients(), tmp_path / "whole", callbacks=[ffl.EarlyStopping(patience=2)], **settings)
    assert whole.checkpoint_round() == 4  # the first is the best, two more are not better, one more ends the run
    with pytest.raises(Stopped):
        ffl.run(own_clients(), tmp_path / "cut", callbacks=[ffl.EarlyStopping(patience=2), kill], **settings)
    again = ffl.run(own_clients(), tmp_path / "cut", callbacks=[ffl.EarlyStopping(patience=2)], resume=True, **settings)
    assert again.checkpoint_round() == 4
    assert again.summary() == whole.summary()


def test_what_is_no_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="callbacks has 3: give functions"):
        ffl.run(own_clients(), tmp_path, callbacks=[3], **QUICK)  # type: ignore[list-item]
    with pytest.raises(UserError, match="callbacks must be a list"):
        ffl.run(own_clients(), tmp_path, callbacks=print, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"trackers must be a list: write trackers=\['mlflow'\]"):
        ffl.run(own_clients(), tmp_path, trackers="mlflow", **QUICK)
    with pytest.raises(UserError, match="patience of 1 or more"):
        ffl.EarlyStopping(patience=0)


def test_a_run_as_text_and_as_tables(tmp_path: Path) -> None:
    run = ffl.run(own_clients(), tmp_path / "<one>", rounds=2, **QUICK)
    count = len(run.clients())
    assert f"FedAvg, {count} clients, 2 of 2 rounds, accuracy " in repr(run)
    html = run._repr_html_()
    assert html.count("<tr>") == count + 1
    assert "<one>" not in html
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert len(frame) == 2 * count
    assert set(frame["client"]) == set(range(1, count + 1))
    assert list(frame["name"][:count]) == [client["name"] for client in run.clients()]


def test_progress_is_shown_where_somebody_watches(tmp_path: Path, capsys, monkeypatch) -> None:
    ffl.run(own_clients(), tmp_path / "a", rounds=1, **QUICK)
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setattr("factorized_fl.api._SELDOM", 0.0)
    ffl.run(own_clients(), tmp_path / "b", rounds=1, **QUICK)
    assert "FedAvg: round 1/1, accuracy" in capsys.readouterr().out


def test_errors_name_arguments_in_python_and_flags_on_the_command_line(tmp_path: Path) -> None:
    ffl.run(own_clients(), tmp_path, rounds=1, **QUICK)
    with pytest.raises(UserError) as error:
        ffl.run(own_clients(), tmp_path, rounds=1, **QUICK)
    assert "add resume=True to continue it, or choose another out=." in str(error.value)
    with flags_shown():
        assert "add --resume to continue it, or choose another --out." in str(error.value)
        assert str(UserError("write --set fedavg.lr=0.1, --data DIR")) == "write --set fedavg.lr=0.1, --data DIR"
    assert str(UserError("write --set fedavg.lr=0.1, --data DIR")) == "write fedavg.lr=0.1, data="


def test_weights_and_biases_gets_the_curves(tmp_path: Path, monkeypatch) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    begun: dict[str, Any] = {}

    def init(**arguments: Any) -> Any:
        begun.update(arguments)
        return SimpleNamespace(
            log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append((-1, {}))
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    ffl.run(own_clients(), tmp_path, rounds=2, trackers=["wandb"], **QUICK)
    assert [step for step, _ in logged] == [1, 2, -1]
    assert {"accuracy/all clients", "train_loss/client/1", "bytes/up"} <= logged[0][1].keys()
    assert (begun["mode"], begun["dir"], begun["config"]["method"]) == ("offline", str(tmp_path), "fedavg")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow")
def test_mlflow_gets_the_curves_of_a_resumed_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def kill(state: ffl.RoundState) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        ffl.run(own_clients(), tmp_path, rounds=2, trackers=["mlflow"], callbacks=[kill], **QUICK)
    ffl.run(own_clients(), tmp_path, rounds=2, trackers=["mlflow"], resume=True, **QUICK)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("factorized-fl")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["method"] == "fedavg"
    assert [m.step for m in client.get_metric_history(found.info.run_id, "bytes/up")] == [1, 2]


def test_a_tracker_that_is_missing_or_unknown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"MLflow is not installed: pip install .factorized-fl\[mlflow\]"):
        ffl.run(own_clients(), tmp_path, trackers=["mlflow"], **QUICK)
    with pytest.raises(UserError, match=r"Unknown tracker 'mlfow'\. Did you mean 'mlflow'"):
        ffl.run(own_clients(), tmp_path, trackers=["mlfow"], **QUICK)


def test_a_verdict_runs_the_control_once(tmp_path: Path) -> None:
    settings = {**QUICK, "method": "factorized-fl", "rounds": 2}
    run = ffl.run(own_clients(), tmp_path / "one", **settings)
    first = run.verdict()
    written = (tmp_path / "one-control-seed1" / "summary.json").stat().st_mtime_ns
    assert run.verdict() == first
    assert (tmp_path / "one-control-seed1" / "summary.json").stat().st_mtime_ns == written
    control = ffl.run(own_clients(), tmp_path / "control", control=True, **settings)
    assert run.verdict(control) == first
    with pytest.raises(UserError, match="is its own control: give a reference"):
        control.verdict()
