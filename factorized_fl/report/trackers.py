"""Observers that write a run's metrics for experiment trackers: TensorBoard, MLflow and Weights & Biases, offline."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.report.tensorboard import TensorBoardObserver, curves
from factorized_fl.results.schema import Record

if TYPE_CHECKING:
    from factorized_fl.simulate.build import Federation


class Tracker(Protocol):
    """An observer of a run that is closed after it."""

    def __enter__(self) -> "Tracker": ...

    def __exit__(self, *_: object) -> None: ...

    def started(self, federation: "Federation", done: int) -> None:
        """Open the log."""

    def client_done(self, round_number: int, client: int) -> None:
        """Write nothing until the round is complete."""

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Add one point to every curve."""


class _LogTracker:
    """Opens a log when the run starts, and writes the curves of every round to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> "_LogTracker":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""

    def started(self, federation: "Federation", done: int) -> None:
        """Open the log with the run's configuration."""
        config = federation.config
        values = {**dataclasses.asdict(config), **config.options}
        self._open({name: value for name, value in values.items() if name != "options"}, done)

    def client_done(self, round_number: int, client: int) -> None:
        """Write nothing until the round is complete."""

    def round_done(self, round_number: int, records: Sequence[Record]) -> None:
        """Write the curves of this round."""
        self._write(dict(curves(records)), round_number)

    def _open(self, settings: dict[str, Any], done: int) -> None:
        raise NotImplementedError

    def _write(self, values: dict[str, float], round_number: int) -> None:
        raise NotImplementedError


class MLflowTracker(_LogTracker):
    """Writes to the MLflow server of MLFLOW_TRACKING_URI, or else to the folder `mlflow` of the run directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.mlflow = _library("mlflow", "MLflow")
        self.run = ""

    def _open(self, settings: dict[str, Any], done: int) -> None:
        kept = self.directory / "mlflow.run"  # a resumed run continues its curves
        if not (where := os.environ.get("MLFLOW_TRACKING_URI")):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            where = (self.directory / "mlflow").resolve().as_uri()
        self.client = self.mlflow.tracking.MlflowClient(tracking_uri=where)
        if done and kept.is_file():
            self.run = kept.read_text()
            return
        found = self.client.get_experiment_by_name("factorized-fl")
        experiment = found.experiment_id if found else self.client.create_experiment("factorized-fl")
        self.run = self.client.create_run(experiment, run_name=self.directory.name).info.run_id
        for name, value in settings.items():
            self.client.log_param(self.run, name, str(value)[:500])
        self.directory.mkdir(parents=True, exist_ok=True)
        kept.write_text(self.run)

    def _write(self, values: dict[str, float], round_number: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=round_number)

    def __exit__(self, *_: object) -> None:
        """Mark the run as finished."""
        if self.run:
            self.client.set_terminated(self.run)


class WandbTracker(_LogTracker):
    """Writes for Weights & Biases in the folder `wandb` of the run directory; `wandb sync` uploads it.

    With WANDB_MODE=online the library uploads at once.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.wandb = _library("wandb", "Weights & Biases")
        self.run: Any = None

    def _open(self, settings: dict[str, Any], done: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run = self.wandb.init(
            project="factorized-fl",
            name=self.directory.name,
            dir=str(self.directory),
            config=settings,
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def _write(self, values: dict[str, float], round_number: int) -> None:
        self.run.log(values, step=round_number)

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        if self.run is not None:
            self.run.finish()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoardObserver,
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}


def make_tracker(name: str, directory: Path) -> Tracker:
    """Return a tracker for a run directory; raise UserError for an unknown name or a library that is missing."""
    if name not in TRACKERS:
        raise unknown("tracker", str(name), TRACKERS)
    return TRACKERS[name](directory)


def _library(name: str, title: str) -> Any:
    """Return an optional library; raise UserError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f'{title} is not installed: pip install "factorized-fl[{name}]".') from None
