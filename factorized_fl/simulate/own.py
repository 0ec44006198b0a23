"""Runs with the caller's own data or network: their configuration, and the models and verdict of a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from factorized_fl.config import Config, resolve
from factorized_fl.core.errors import UserError
from factorized_fl.core.named import NOTHING, Brought
from factorized_fl.core.stack import load_untied
from factorized_fl.data.clients import OWN, ClientData, own_scenario
from factorized_fl.data.scenarios import Scenario, score_validation
from factorized_fl.methods import fingerprints
from factorized_fl.nn import fold
from factorized_fl.nn.own import Factory
from factorized_fl.results.control import control_of
from factorized_fl.results.effect import CONTROL, Effect
from factorized_fl.results.frames import describe_progress, metrics_frame, run_html
from factorized_fl.results.reading import read_run
from factorized_fl.results.references import find_control, judge_run
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.networks import initial_models, model_inputs
from factorized_fl.simulate.run import describe_run, run_federation
from factorized_fl.simulate.scenario import DEALT, build_scenario_of

if TYPE_CHECKING:
    import pandas

_NETWORK = ("width", "head_layers", "head_norm", "head_width")  # settings of the built-in networks


def own_config(clients: Sequence[ClientData], method: str | None, settings: Mapping[str, Any]) -> Config:
    """The configuration of a run with these clients; raises UserError for settings that have no effect on it."""
    if dealt := [name for name in ("dataset", "inputs", "clients", *DEALT) if name in settings]:
        raise UserError(f"{dealt[0]} has no effect on clients with data of their own: leave it out.")
    images = all(isinstance(c, ClientData) and "uint8" in str(getattr(c.x, "dtype", "")) for c in clients)
    if not images and settings.get("augment", "none") == "paper":
        raise UserError("augment = 'paper' needs uint8 images [N, C, H, W]: leave it out.")
    table = {"dataset": OWN, "clients": len(clients), "augment": "paper" if images else "none"}
    config = resolve(table, method, settings) if clients else Config()
    if config.has_own_model and (unused := [name for name in _NETWORK if name in settings]):
        raise UserError(f"{unused[0]} has no effect on a network of your own: leave it out.")
    return config


def own_run_scenario(clients: Sequence[ClientData], config: Config) -> Scenario:
    """The scenario of these clients under a configuration of `own_config`."""
    seed = config.partition_seed or config.seed
    validated = config.score == "validation"
    scenario = own_scenario(
        clients, train_share=config.train_share, test_images=config.test_images, validated=validated, seed=seed
    )
    return score_validation(scenario) if validated else scenario


class Run(RunDirectory):
    """A run directory, with the data and the network that a model is made from."""

    def __init__(
        self,
        path: Path,
        scenario: Scenario | None = None,
        data: Path | None = None,
        factory: Factory | None = None,
        brought: Brought = NOTHING,
    ) -> None:
        super().__init__(path)
        self._scenario, self._data, self.factory, self.brought = scenario, data, factory, brought

    def __repr__(self) -> str:
        return f"<Run '{self.path}': {describe_progress(self)}>"

    def _repr_html_(self) -> str:
        return run_html(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """The metrics, one row for each round and client, which is numbered from 1; raises UserError without pandas."""
        return metrics_frame(self)

    @property
    def scenario(self) -> Scenario:
        """The data of the run; if it did not come from the caller, it is loaded again."""
        if self._scenario is None:
            self._scenario = build_scenario_of(self.config(), self._data)
        return self._scenario

    def inputs(self, x: Any) -> torch.Tensor:
        """A batch, tensor or array, as the network receives it: images are divided by 255 and normalised."""
        return model_inputs(self.scenario, torch.as_tensor(x))

    def verdict(self, reference: RunDirectory | None = None) -> Effect:
        """Compare the clients with those of a control (``control=True``) or a Stand-Alone run of the same data.

        Without a reference it is the control beside this run, which is run first if there is none. Raises UserError if
        a run is incomplete or the two cannot be compared.
        """
        return judge_run(self.path, (reference or self._control()).path)

    def _control(self) -> RunDirectory:
        """The complete control of this run, found beside it or run now."""
        config, ours = self.config(), read_run(self.path, strict=True)
        if not ours.complete:
            raise UserError(f"'{self.path}' is not complete: let it finish first.")
        wanted = control_of(config)
        if wanted == config:
            raise UserError(f"A run of {ours.title} without other clients is its own control: give a reference.")
        if found := find_control(ours, []):
            return RunDirectory(found.path)
        beside = self.path.parent / f"{self.path.name}-{CONTROL}-seed{config.seed}"
        return run_federation(
            *(wanted, beside),
            data=self._data,
            scenario=self._scenario,
            resume=True,
            factory=self.factory,
            brought=self.brought,
        )

    def model(self, client: int) -> nn.Module:
        """The trained network of a client, numbered from 1: a plain module on the CPU in evaluation mode.

        Factors are multiplied out, and the statistics of the client's data are left out. Raises UserError if there is
        no such client, or if it has not taken part in any round.
        """
        config, count = self.config(), len(self.clients())
        if isinstance(client, bool) or not isinstance(client, int) or not 1 <= client <= count:
            raise UserError(f"There is no client {client!r}: clients are numbered from 1 to {count}.")
        if not (rounds := self.checkpoint_round()):
            raise UserError(f"'{self.path}' holds no checkpoint: run it again, or restore the file.")
        federation = build_federation(
            *(config, self.scenario, torch.device("cpu"), "reference"), factory=self.factory, brought=self.brought
        )
        self.refuse_other_data(describe_run(federation))
        with self.reading_checkpoint():
            federation.load(self.load_checkpoint())
        if not federation.clients.trained[client - 1]:
            raise UserError(f"Client {client} has not taken part in a round of '{self.path}': it has no model yet.")
        tensors = federation.engine.tested(rounds, client - 1, federation.clients)
        classes = len(federation.scenario.clients[client - 1].classes)
        model = initial_models(config, federation.scenario, self.factory)[classes]
        load_untied(model, {name: tensor.detach().cpu() for name, tensor in tensors.items()})
        plain = fold(model.eval())
        if fingerprints.NAME in dict(plain.named_buffers(recurse=False)):
            delattr(plain, fingerprints.NAME)
        return plain
