"""The scenario of a run: its clients and their data, as configured and as the method can use them."""

from dataclasses import fields
from pathlib import Path

import torch

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.named import import_named, is_named, reason_of
from factorized_fl.core.toml_text import to_toml_value
from factorized_fl.data.clients import OWN, own_scenario
from factorized_fl.data.scenarios import (
    Scenario,
    align_labels,
    build_scenario,
    hold_out,
    pool_domains,
    score_validation,
    scramble,
    try_validation,
)
from factorized_fl.data.sources import load, normalisation
from factorized_fl.methods import Method, class_refusal, label_refusal
from factorized_fl.nn.models import FEWEST_PIXELS

# Settings of data that the package loads and deals itself.
DEALT = (
    *("image_size", "channels", "partition", "alpha", "permuted", "permutation_seed", "clients_per_domain"),
    *("images_per_client", "scrambled"),
)


def build_scenario_of(config: Config, data: Path | None = None) -> Scenario:
    """The configured scenario; `data` is the folder that holds the data sets."""
    if config.inputs:
        raise UserError("inputs has no effect in a simulation, whose data show what they are: leave it out.")
    if config.dataset == OWN:
        raise UserError("This run has data from Python: resume or use it there, with ffl.run(clients, resume=True).")
    if is_named(config.dataset):
        return _named_scenario(config)
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
        test_images=config.test_images,
        train_share=config.train_share,
        permutation_seed=config.permutation_seed,
        seed=seed,
    )
    if config.scrambled:
        scenario = scramble(scenario, config.scrambled, seed)
    return score_validation(scenario) if config.score == "validation" else scenario


def _named_scenario(config: Config) -> Scenario:
    """The scenario of the clients that the configured function returns."""
    function = import_named("dataset", config.dataset)
    try:
        found = function()
    except UserError:
        raise
    except Exception as error:  # whatever foreign code raises
        raise UserError(f"The data {config.dataset} cannot be made ({reason_of(error)}): correct it.") from error
    if not isinstance(found, list | tuple):
        kind = type(found).__name__
        raise UserError(f"{config.dataset} gives a {kind}: let it return a list of ffl.ClientData.")
    if len(found) != config.clients:
        raise UserError(
            f"{config.dataset} gives {len(found)} clients, but clients = {config.clients}: set clients to its number."
        )
    for setting in fields(Config):
        if setting.name in DEALT and (value := getattr(config, setting.name)) != setting.default:
            raise UserError(
                f"{setting.name} = {to_toml_value(value)} has no effect on the clients that {config.dataset} gives: "
                f"leave it out, or set it to {to_toml_value(setting.default)}."
            )
    validated = config.score == "validation"
    scenario = own_scenario(
        found,
        train_share=config.train_share,
        test_images=config.test_images,
        validated=validated,
        seed=config.partition_seed or config.seed,
    )
    if scenario.arrays and config.augment == "paper":
        raise UserError(f"augment = 'paper' needs images, but {config.dataset} gives arrays: set augment = 'none'.")
    return score_validation(scenario) if validated else scenario


def scenario_for(method: Method, config: Config, scenario: Scenario) -> Scenario:
    """The scenario with the images set aside that the method tries models on; raises UserError if it cannot serve."""
    if method.holdout:
        scenario = hold_out(scenario, method.holdout, config.seed)
    if method.tries_validation:
        if config.score == "validation":
            raise UserError(
                "tried_on=validation conflicts with score=validation: the same images would select and score models."
            )
        scenario = try_validation(scenario)
    if config.oracle == "aligned":
        scenario = align_labels(scenario)
    if config.oracle == "centralised":
        scenario = pool_domains(scenario)
    if method.needs_classes and scenario.labels.is_floating_point():
        raise UserError(f"The targets of this scenario are numbers. {class_refusal(method)}")
    if method.needs_agreeing_labels and not scenario.labels_agree and config.align == "off":
        raise UserError(f"The clients of this scenario number their classes differently. {label_refusal(method)}")
    if config.has_own_model:
        return scenario
    pixels = scenario.images.shape[2:]
    if scenario.images.dim() != 4 or scenario.images.dtype == torch.int64:
        kind = list(scenario.images.shape[1:])
        raise UserError(f"The network {config.model} takes images, not inputs {kind}: give model= a network of yours.")
    if min(pixels) < FEWEST_PIXELS:
        size = " x ".join(map(str, pixels))
        raise UserError(f"Images of {size} pixels are too small: set image_size to {FEWEST_PIXELS} or more.")
    return scenario
