"""Runs with the caller's own data or network: their configuration, and what one takes from a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from factorized_fl.results.effect import Effect
from factorized_fl.results.references import judge_run
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.build import build_federation, build_scenario_of, initial_models, model_inputs
from factorized_fl.simulate.run import describe_run

# Settings of data that the package loads and deals itself.
_DEALT = (
    *("dataset", "image_size", "channels", "partition", "alpha", "permuted", "permutation_seed", "clients"),
    *("clients_per_domain", "images_per_client", "scrambled"),
)
_NETWORK = ("width", "head_layers", "head_norm", "head_width")  # settings of the built-in networks


def own_config(clients: Sequence[ClientData], method: str | None, settings: Mapping[str, Any]) -> Config:
    """The configuration of a run with these clients; raises UserError for settings that have no effect on it."""
    if dealt := [name for name in _DEALT if name in settings]:
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
    scenario = own_scenario(clients, train_share=config.train_share, test_images=config.test_images, seed=seed)
    return score_validation(scenario) if config.score == "validation" else scenario


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

    @property
    def scenario(self) -> Scenario:
        """The data of the run; where the caller did not bring any, it is loaded again."""
        if self._scenario is None:
            self._scenario = build_scenario_of(self.config(), self._data)
        return self._scenario

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """A batch as the network receives it: images are divided by 255 and normalised, anything else is unchanged."""
        return model_inputs(self.scenario, x)

    def verdict(self, reference: RunDirectory) -> Effect:
        """What the clients gained over those of a control (``control=True``) or Stand-Alone run of the same data.

        Raises UserError if either run is incomplete or the two cannot be compared.
        """
        return judge_run(self.path, reference.path)

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
