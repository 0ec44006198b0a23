"""From a configuration to a federation at its start: scenario, method, models, stacked state, engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import roles
from factorized_fl.core.seeds import derive, torch_rng
from factorized_fl.core.stack import ClientStack
from factorized_fl.data.scenarios import Scenario, build_scenario, hold_out, score_validation, scramble, try_validation
from factorized_fl.data.sources import load, normalisation
from factorized_fl.engine import Engine, Task
from factorized_fl.engine.choice import build_engine
from factorized_fl.methods import Method, Tensors, fingerprints
from factorized_fl.nn import Role, build_model
from factorized_fl.nn.models import FEWEST_PIXELS
from factorized_fl.tasks.augment import normalise


@dataclass
class Federation:
    """Everything a run needs in memory. Built from the configuration alone; a checkpoint fills in the rest."""

    config: Config
    scenario: Scenario
    method: Method
    roles: dict[str, Role]
    shared: frozenset[str]
    state: ClientStack
    momentum: ClientStack
    start: ClientStack  # where each client's last training began: the names that the method wants to know
    initial: Tensors  # [K, ...]: what the method resets
    received: torch.Tensor  # bool [K]
    method_state: Tensors
    engine: Engine

    @property
    def tensors(self) -> Tensors:
        """All that changes from round to round, under distinct names."""
        return {
            **self.state.flat("state"),
            **self.momentum.flat("momentum"),
            **{f"method/{name}": tensor for name, tensor in self.method_state.items()},
            **self.start.flat("start"),
            "received": self.received,
        }

    def load(self, tensors: Tensors) -> None:
        """Go back to where a checkpoint was taken."""
        self.state.load("state", tensors)
        self.momentum.load("momentum", tensors)
        self.start.load("start", tensors)
        self.received.copy_(tensors["received"])
        self.method_state = {
            name.removeprefix("method/"): tensor for name, tensor in tensors.items() if name.startswith("method/")
        }


def build_scenario_of(config: Config, data: Path | None = None) -> Scenario:
    """The configured scenario; `data` is the folder that holds the data sets."""
    domains = load(config.dataset, data, size=config.image_size or None, channels=config.channels or None)
    seed = config.partition_seed or config.seed
    scenario = build_scenario(
        domains,
        normalisation(config.dataset, domains[0].images.shape[1]),
        clients=config.clients,
        partition=config.partition,
        alpha=config.alpha,
        permuted=config.permuted,
        clients_per_domain=config.clients_per_domain,
        images_per_client=config.images_per_client,
        train_share=config.train_share,
        permutation_seed=config.permutation_seed,
        seed=seed,
    )
    if config.scrambled:
        scenario = scramble(scenario, config.scrambled, seed)
    return score_validation(scenario) if config.score == "validation" else scenario


def build_federation(
    config: Config, scenario: Scenario, device: torch.device, engine: str = "auto", noise_seed: int | None = None
) -> Federation:
    """All clients at their common start; `engine` is "reference" or "auto", the fastest that can do it.

    Who hides something from others by noise draws it from a seed of its own, not from the one that all know.
    """
    method = config.build_method()
    if method.holdout:
        scenario = hold_out(scenario, method.holdout, config.seed)
    if method.tries_validation:
        if config.score == "validation":
            raise UserError("Images that models are tried on cannot score them, too: set score or tried_on otherwise.")
        scenario = try_validation(scenario)
    channels, *pixels = scenario.images.shape[1:]
    if min(pixels) < FEWEST_PIXELS:
        size = " x ".join(map(str, pixels))
        raise UserError(f"Images of {size} pixels are too small: set image_size to {FEWEST_PIXELS} or more.")
    counts = {len(client.classes) for client in scenario.clients}
    models = {classes: initial_model(config, classes, channels, scenario.labels_agree) for classes in counts}
    initial = {classes: model.state_dict() for classes, model in models.items()}
    state = ClientStack.of([initial[len(client.classes)] for client in scenario.clients])
    model = next(iter(models.values()))
    role_of = roles(model)
    shared = frozenset(name for name, role in role_of.items() if travels(method, role, scenario.labels_agree))
    trained = [name for name, _ in model.named_parameters()]
    state = ClientStack(
        {name: t.to(device) for name, t in state.common.items()},
        [{name: t.to(device) for name, t in own.items()} for own in state.own],
    )
    if method.looks_at_images:
        seed = config.seed if noise_seed is None else noise_seed
        _fingerprint_images(seed, method, scenario, models, state)
    kept = set(role_of) if method.tests_start else shared if method.needs_start else set()
    reset = {name for name, role in role_of.items() if scenario.labels_agree and method.resets(role)}
    return Federation(
        config=config,
        scenario=scenario,
        method=method,
        roles=role_of,
        shared=shared,
        state=state,
        momentum=state.zeros_like(trained),
        start=state.copy_of(kept),
        initial={name: state.common[name].clone() for name in sorted(reset)},
        received=torch.zeros(len(scenario.clients), dtype=torch.bool),
        method_state={},
        engine=build_engine(engine, Task(config, method, scenario, models, role_of, shared, device)),
    )


def _fingerprint_images(
    seed: int, method: Method, scenario: Scenario, models: Mapping[int, nn.Module], state: ClientStack
) -> None:
    """Every client looks at its training images through the first layer, before anybody trains."""
    for k, client in enumerate(scenario.clients):
        tensors = state.client(k)
        device = tensors[fingerprints.NAME].device
        mean, std = (torch.tensor(values, device=device) for values in (scenario.mean, scenario.std))
        images = normalise(scenario.images[client.train].to(device).float() / 255, mean, std)
        labels = client.labelling[scenario.labels[client.train]].to(device)
        rows = fingerprints.first_layer(models[len(client.classes)], tensors, images)
        found = fingerprints.describe(rows, labels, len(client.classes))
        generator = torch_rng(seed, "fingerprint", client.draws_as(k))
        tensors[fingerprints.NAME].copy_(method.hide(found, generator))


def initial_model(config: Config, classes: int, channels: int, labels_agree: bool) -> nn.Module:
    """The configured network with the method's parametrisation, as every client with so many classes begins."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "model"))
        model = build_model(
            config.model,
            classes,
            channels=channels,
            width=config.width,
            head_layers=config.head_layers,
            head_norm=config.head_norm,
            head_width=config.head_width,
        )
    return config.build_method().parametrize(model, torch_rng(config.seed, "parametrisation"), labels_agree)


def travels(method: Method, role: Role, labels_agree: bool) -> bool:
    """Whether tensors of this role leave a client: what the method shares, within what nobody may share."""
    return role.kind != "stat" and (labels_agree or not role.head) and method.shares(role)
