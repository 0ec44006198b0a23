from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report.tensorboard import TensorBoardObserver
from factorized_fl.simulate.run import run_federation
from tests.simulate.test_run import StopIn
from tests.tiny import tiny_config, write_folder


def points(path: Path, tag: str) -> dict[int, float]:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(path))
    events.Reload()
    scalars = events.Scalars(tag)
    assert len(scalars) == len({event.step for event in scalars})
    return {event.step: event.value for event in scalars}


def test_curves_of_an_interrupted_and_resumed_run(tmp_path: Path) -> None:
    images, out = write_folder(tmp_path / "images"), tmp_path / "run"
    config = tiny_config("fedavg")
    with pytest.raises(KeyboardInterrupt), TensorBoardObserver(out) as observer:
        run_federation(config, out, data=images, observers=[observer, StopIn(2)])
    with TensorBoardObserver(out) as observer:
        directory = run_federation(config, out, data=images, resume=True, observers=[observer])
    metrics = directory.metrics()
    mean = {r: sum(m["accuracy"] for m in metrics if m["round"] == r) / 4 for r in (1, 2, 3)}
    assert points(out / "tensorboard", "accuracy/all clients") == pytest.approx(mean)
    assert len(points(out / "tensorboard", "train_loss/client/4")) == 3
    up = {r: sum(m["up_bytes"] for m in metrics if m["round"] == r) for r in (1, 2, 3)}
    assert points(out / "tensorboard", "bytes/up") == pytest.approx(up)


def test_without_tensorboard_one_sentence_before_anything_begins(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"factorized-fl\[tensorboard\]"):
        TensorBoardObserver(tmp_path / "run")
    assert not (tmp_path / "run").exists()
