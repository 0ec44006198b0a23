"""The networks of a run at their start, what their inputs are, and which of their tensors leave a client."""

from collections.abc import Mapping

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.frozen import share_frozen
from factorized_fl.core.roles import RUNNING, Role, name_classifier, roles
from factorized_fl.core.seeds import global_rng, torch_rng
from factorized_fl.core.shapes import input_kind
from factorized_fl.core.stack import client_state
from factorized_fl.data.scenarios import Client, Scenario
from factorized_fl.methods import Method
from factorized_fl.nn import build_model
from factorized_fl.nn.own import Factory, equalise, import_factory, make_own_model
from factorized_fl.simulate.alignment import Alignment
from factorized_fl.tasks.augment import normalise

_REFERENCE = 2  # outputs of the network whose initial values all clients take outside their classifiers


def model_inputs(scenario: Scenario, inputs: torch.Tensor) -> torch.Tensor:
    """Inputs of the scenario as the network receives them in tests: scaled and normalised if they are images."""
    if scenario.arrays:
        return inputs
    mean, std = (torch.tensor(values, device=inputs.device) for values in (scenario.mean, scenario.std))
    return normalise(inputs.float() / 255, mean, std)


def initial_models(config: Config, scenario: Scenario, factory: Factory | None) -> dict[int, nn.Module]:
    """A network for each number of classes that a client has, with the method's parametrisation."""
    agree, first = scenario.labels_agree, dict[int, Client]()
    for client in scenario.clients:
        first.setdefault(len(client.classes), client)
    if not config.has_own_model:
        channels = scenario.images.shape[1]
        return {count: initial_model(config, count, channels, agree) for count in {*first}}
    examples = {}
    for count, client in first.items():
        example = model_inputs(scenario, scenario.images[client.train[:1]])
        # A factory could make initial weights depend on its example, which a privacy budget does not cover.
        examples[count] = torch.zeros_like(example) if config.privacy_epsilon else example, client.name
    if not agree:  # the initial values outside the classifier depend neither on the first client nor on the driver
        examples = {_REFERENCE: next(iter(examples.values())), **examples}
    models = _own_models(config, factory or import_factory(config.model), examples, agree)
    return {count: models[count] for count in first}


def _own_models(
    config: Config, factory: Factory, examples: Mapping[int, tuple[torch.Tensor, str]], labels_agree: bool
) -> dict[int, nn.Module]:
    """A network for each number of outputs, given an example and the name of a client that has so many classes."""
    models = {}
    for count, (example, name) in examples.items():
        with global_rng(config.seed, "model"):
            models[count] = make_own_model(factory, config.model, example, count, name)
        if config.classifier:
            name_classifier(models[count], config.classifier)
    names = {count: name for count, (_, name) in examples.items()}
    equalise(models, names)  # before factors are drawn: names and shapes are those that the caller knows
    for count, model in models.items():
        generator = torch_rng(config.seed, "parametrisation")
        models[count] = config.build_method().parametrize(model, generator, labels_agree)
    equalise(models, names)
    share_frozen(models)
    return models


def blank_input(config: Config, channels: int) -> torch.Tensor:
    """A batch of one input of zeros, of the configured kind: a black image, or an array."""
    if not config.inputs:
        return torch.zeros(1, channels, config.image_size, config.image_size)
    kind = input_kind(config.inputs)
    return torch.zeros(1, *kind.shape, dtype=getattr(torch, kind.dtype))


def initial_model(config: Config, classes: int, channels: int, labels_agree: bool) -> nn.Module:
    """The configured network with the method's parametrisation: the start of every client with so many classes.

    A factory is called with zeros as its example: organisations have no input that all of them know.
    """
    if config.has_own_model:
        examples = dict.fromkeys((_REFERENCE, classes), (blank_input(config, channels), "all sites"))
        return _own_models(config, import_factory(config.model), examples, labels_agree)[classes]
    with global_rng(config.seed, "model"):
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


def travelling(
    method: Method, model: nn.Module, labels_agree: bool, alignment: Alignment | None = None
) -> tuple[dict[str, Role], list[str]]:
    """The roles of the model's tensors, and the names of those that leave a client, both in the model's order.

    The frozen part has no roles: it is equal everywhere and belongs to no client.
    With an alignment the classifier's tensors leave a client; those with a row for each class travel as such rows.
    """
    own = client_state(model)
    role_of = {name: role for name, role in roles(model).items() if name in own}
    whole = labels_agree or alignment is not None
    by_class = alignment.rows.names if alignment else ()
    return role_of, [n for n, role in role_of.items() if n not in by_class and travels(method, n, role, whole)]


def refuse_nothing_shared(config: Config, method: Method, shared: frozenset[str], labels_agree: bool) -> None:
    """Raise UserError if no tensor of the model leaves a client, although the method shares tensors of other models."""
    if shared or method.class_payloads or not any(method.shares(Role(kind, False)) for kind in ("body", "u", "v")):
        return
    kept = "" if labels_agree else ", which is shared only if all clients name the same classes"
    raise UserError(
        f"With {config.method} clients would share nothing: of the model {config.model} only the classifier is "
        f"trained{kept}. Let another layer be trained, or use stand-alone."
    )


def travels(method: Method, name: str, role: Role, labels_agree: bool) -> bool:
    """Whether a tensor leaves a client: the method shares it and sharing it is permitted."""
    shared = method.sends_statistics and name.endswith(RUNNING) if role.kind == "stat" else method.shares(role)
    return shared and (labels_agree or not role.head)
