"""Sharing of classifiers among matched classes: the parts that `align` adds to the server and the clients of a run."""

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.core.classes import (
    DRIFT,
    MEANS,
    SPREAD,
    ClassRows,
    ClassSharing,
    Matcher,
    TrueMatches,
    class_tensors,
)
from factorized_fl.core.errors import UserError
from factorized_fl.core.method import Method
from factorized_fl.core.roles import find_head, layers_under, roles
from factorized_fl.core.seeds import torch_rng
from factorized_fl.core.stack import untied_state
from factorized_fl.core.views import Tensors
from factorized_fl.data.scenarios import Scenario
from factorized_fl.methods.class_statistics import FEATURES, describe_classes, random_features
from factorized_fl.methods.correspondence import LARGEST, ClassifierMatcher, StatisticsMatcher


@dataclass(frozen=True)
class Alignment:
    """The tensors with a row for each class, and how classes are matched."""

    config: Config
    rows: ClassRows
    described: Tensors  # for each payload by which classes are matched, a tensor of its shape and type
    clients: int
    labels: torch.Tensor | None = None  # the true matches, int64 [K, most]

    def matcher(self) -> Matcher:
        """The matcher of the configuration."""
        if self.labels is not None:
            return TrueMatches(self.labels)
        return StatisticsMatcher() if self.config.align == "statistics" else ClassifierMatcher()

    def down(self, tensors: Tensors) -> Tensors:
        """Zeros in the shape of each payload about classes that a client receives, from the tensors of any client."""
        return self.rows.down(tensors, self.clients)

    def sharing(self) -> ClassSharing:
        """Return the server's part of matching classes."""
        config = self.config
        return ClassSharing(
            self.rows, self.matcher(), self.described, config.align_confidence, self.clients, config.min_peers
        )


def find_alignment(
    config: Config, method: Method, models: Mapping[int, nn.Module], scenario: Scenario
) -> Alignment | None:
    """Returns how classifiers are shared by class; None without `align`, or if clients exchange nothing."""
    if config.align == "off" or not config.exchanges:
        return None
    if scenario.targets(0, scenario.clients[0].train[:1]).is_floating_point():
        raise UserError(
            f"align = '{config.align}' matches classes, but the targets of this task are not classes: leave it off."
        )
    if scenario.labels_agree:
        raise UserError(f"align = '{config.align}' has no effect where all clients number their classes alike.")
    counts = [len(client.classes) for client in scenario.clients]
    most = config.align_classes or max(counts)
    if most < max(counts):
        raise UserError(f"align_classes = {most} has no room for the {max(counts)} classes of a client: raise it.")
    classes, model = next(iter(models.items()))
    labels = true_labels(scenario, most) if config.align == "true" else None
    return alignment_of(config, method, model, classes, most, labels)


def network_alignment(config: Config, method: Method, model: nn.Module, classes: int) -> Alignment | None:
    """Returns how organisations share classifiers by class, for a network with `classes`; None without `align`."""
    return None if config.align == "off" else alignment_of(config, method, model, classes, config.align_classes)


def alignment_of(
    config: Config, method: Method, model: nn.Module, classes: int, most: int, labels: torch.Tensor | None = None
) -> Alignment | None:
    """Returns how a run shares the rows of single classes; None if the method shares none.

    `model` is a network for so many `classes`; `most` is the largest number of classes of a client; `labels` are
    the true matches, if they are used.
    """
    layer, tensors = layers_under(model, find_head(model))[-1], untied_state(model)
    dense, clients = dense_rows({classes: model})(tensors), config.clients
    role_of = {name: role for name, role in roles(model).items() if name in tensors}
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    names = class_tensors(role_of, {name: t.shape for name, t in tensors.items()}, layer, classes)
    names = [name for name in names if name not in frozen and method.shares(role_of[name])]
    if not method.class_payloads and (not names or len(dense) != classes):
        if any(map(method.shares, role_of.values())):
            warnings.warn(
                f"align = '{config.align}' has no effect: {method.name} shares no rows of a classifier.", stacklevel=2
            )
        return None
    if most * clients > LARGEST:
        raise UserError(
            f"align compares all pairs of classes of all clients, and {clients} clients with up to {most} classes are "
            f"more than {LARGEST:,} classes: leave it off."
        )
    described: Tensors = {}
    if config.align == "statistics":
        described = {MEANS: torch.zeros(most, FEATURES + 1), SPREAD: torch.zeros(FEATURES * (FEATURES + 1) // 2)}
    if config.align == "classifier":
        described = {DRIFT: torch.zeros(most, dense.shape[1])}
    return Alignment(config, ClassRows(tuple(names), most), described, clients, labels)


def dense_rows(models: Mapping[int, nn.Module]) -> Callable[[Tensors], torch.Tensor]:
    """A function that gives the last layer of a client's classifier as dense rows [C, D], with the bias last.

    `models` are networks by number of classes. A weight under a parametrisation is multiplied out.
    """
    name = layers_under(first := next(iter(models.values())), find_head(first))[-1]
    made = [deepcopy(model.get_submodule(name)).train() for model in models.values()]

    @torch.no_grad()
    def rows(tensors: Tensors) -> torch.Tensor:
        for layer in made:
            state = layer.state_dict()
            own = {leaf: tensors[f"{name}.{leaf}"] for leaf in state}
            if all(own[leaf].shape == tensor.shape for leaf, tensor in state.items()):
                layer.load_state_dict(own)
                weight, bias = layer.weight, layer.bias
                assert isinstance(weight, torch.Tensor)
                flat = weight.flatten(1)
                return flat.clone() if bias is None else torch.cat([flat, torch.as_tensor(bias)[:, None]], 1)
        raise KeyError(name)

    return rows


def true_labels(scenario: Scenario, most: int) -> torch.Tensor:
    """One number for the classes of one domain that have the same name, int64 [K, most]; -1 where there is none."""
    known: dict[tuple[str, str], int] = {}
    labels = torch.full((len(scenario.clients), most), -1)
    for k, client in enumerate(scenario.clients):
        for own, name in enumerate(client.classes):
            labels[k, own] = known.setdefault((client.domain, name), len(known))
    return labels


def mirrors_images(config: Config, scenario: Scenario) -> bool:
    """Whether training mirrors images at random, so that an image and its mirror image show the same class."""
    return config.augment == "paper" and not scenario.arrays


def described_classes(
    alignment: Alignment, scenario: Scenario, inputs: Callable[[torch.Tensor], torch.Tensor], noise_seed: int
) -> Tensors:
    """Return the vectors that match classes, [K, ...]: before training, rows of classifiers have not moved."""
    if alignment.config.align != "statistics":
        return {name: torch.zeros(len(scenario.clients), *t.shape) for name, t in alignment.described.items()}
    each, mirrored = [], mirrors_images(alignment.config, scenario)
    for k, client in enumerate(scenario.clients):
        features = random_features(inputs(scenario.images[client.train]), alignment.config.seed, mirrored)
        labels = scenario.targets(k, client.train)
        generator = torch_rng(noise_seed, "class noise", client.draws_as(k))
        each.append(describe_classes(features, labels, alignment.rows.most, alignment.config.align_noise, generator))
    return {name: torch.stack([one[name] for one in each]) for name in alignment.described}


def judge_matches(labels: torch.Tensor, truth: torch.Tensor) -> dict[str, int]:
    """Counts the pairs of classes of two clients that are the same class, that were matched, and both.

    Both are int64 [K, M] with one number for equal classes, -1 for classes that are matched with none or do not exist.
    """
    flat, true = labels.flatten(), truth.flatten()
    owner = torch.arange(len(labels)).repeat_interleave(labels.shape[1])
    pairs = owner[:, None] < owner
    same = pairs & (true[:, None] == true) & (true >= 0)
    matched = pairs & (flat[:, None] == flat) & (flat >= 0)
    return {"same": int(same.sum()), "matched": int(matched.sum()), "right": int((same & matched).sum())}


def match_summary(scenario: Scenario, sharing: ClassSharing) -> dict[str, dict[str, int]]:
    """The entry of a run's summary about its matches in use, judged by their names; only classes with training images.

    With `align = "true"` classes without images are matched as well; they do not count.
    """
    classes = torch.arange(sharing.rows.most)
    there = torch.stack([torch.isin(classes, scenario.targets(k, one.train)) for k, one in enumerate(scenario.clients)])
    truth = true_labels(scenario, sharing.rows.most).where(there, -1)
    return {"matches": judge_matches(sharing.matches.labels.cpu().where(there, -1), truth)}
