"""Task, optimiser, schedule and augmentation of a run, from its options and the caller's functions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from factorized_fl.config import AUGMENTS, Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.named import Brought, brought_or_imported, is_named, name_of
from factorized_fl.core.seeds import global_rng, torch_rng
from factorized_fl.data.scenarios import Scenario
from factorized_fl.engine.optimizers import make_choice
from factorized_fl.engine.schedules import make_schedule
from factorized_fl.engine.training import Training
from factorized_fl.tasks.inputs import Inputs
from factorized_fl.tasks.metrics import Metric
from factorized_fl.tasks.task import Task, check_defined, check_functions, make_task

_FORMS = {
    "optimizer": "a class or function (parameters, lr=...) -> torch.optim.Optimizer",
    "schedule": "a function from the share of the run that is done to a factor on the learning rate",
    "augment": "a function (inputs, generator) -> inputs",
    "loss": "a function (outputs, targets) -> losses",
}


def bring(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Brought]:
    """Return settings with names in place of functions and classes, and the functions and classes by option.

    Raises UserError for a value that is neither a name nor a function.
    """
    named, brought = dict(settings), dict[str, Any]()
    for option, form in _FORMS.items():
        value = named.get(option)
        if value is not None and not isinstance(value, str):
            named[option], brought[option] = name_of(option, value, form), value
    metrics = named.get("metrics")
    if metrics is not None:
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        own = {_metric_name(each): each for each in several if not isinstance(each, str)}
        brought["metrics"] = {n: each if isinstance(each, Metric) else Metric(n, each) for n, each in own.items()}
        named["metrics"] = [each if isinstance(each, str) else _metric_name(each) for each in several]
    return named, brought


def _metric_name(metric: Metric | Callable[..., Any]) -> str:
    if isinstance(metric, Metric):
        return metric.name
    return name_of("metrics", metric, "a function (outputs, targets) -> number, or an ffl.Metric").rpartition(":")[2]


def training_of(config: Config, brought: Brought) -> Training:
    """Returns the training of all clients of a run; raises UserError for an unknown name or an unfit function."""
    own = brought_or_imported("optimizer", config.optimizer, brought) if is_named(config.optimizer) else None
    augment = None
    if config.augment not in AUGMENTS:
        augment = config.augment, brought_or_imported("augment", config.augment, brought)
    return Training(
        optimizer=make_choice(config.optimizer, own, config.lr, config.weight_decay),
        schedule=make_schedule(config.schedule, brought),
        clip=config.clip_norm,
        ema=config.ema,
        augment=augment,
    )


def try_augmentation(training: Training, scenario: Scenario) -> None:
    """Raise UserError if the caller's augmentation fails for two training inputs, or changes their shape."""
    if training.augment is None:
        return
    pool = scenario.images[scenario.clients[0].train[:2]]
    inputs = Inputs(pool, torch.tensor(scenario.mean), torch.tensor(scenario.std), scenario.arrays, training.augment)
    with global_rng(0, "augmentation is tried"):
        inputs.augmented(torch.arange(len(pool)), None, torch_rng(0, "augmentation is tried"))


def task_of(config: Config, scenario: Scenario, brought: Brought) -> Task:
    """The task of a run; raises UserError for options that do not fit the data, naming the client if it is one."""
    classes = [len(client.classes) for client in scenario.clients]
    task = make_task(config.loss, config.metrics, config.class_weights, scenario.labels, classes, brought)
    if config.class_weights and not scenario.labels_agree and task.kind == "classes":
        raise UserError("class_weights needs clients that number the same classes alike: use balanced-cross-entropy.")
    tried = set[int]()
    for k, client in enumerate(scenario.clients):
        targets = scenario.targets(k, client.test)
        if len(client.classes) not in tried:
            tried.add(len(client.classes))
            check_functions(task, len(client.classes), targets, client.name)
        for metric in task.metrics:
            check_defined(metric, len(client.classes), targets, client.name)
    return task
