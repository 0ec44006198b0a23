"""What a run trains with, from its options and from functions of the caller: loss and metrics."""

from collections.abc import Callable, Mapping
from typing import Any

from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.named import Brought, name_of
from factorized_fl.data.scenarios import Scenario
from factorized_fl.tasks.metrics import Metric
from factorized_fl.tasks.task import Task, check_defined, make_task

_FORMS = {"loss": "a function (outputs, targets) -> losses"}


def bring(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Brought]:
    """Return settings in which names stand for functions and classes, and these by option; metrics by name.

    Raises UserError for what is neither a name nor a function.
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


def task_of(config: Config, scenario: Scenario, brought: Brought) -> Task:
    """The task of a run; raises UserError for options that do not fit the data, naming the client where it is one's."""
    classes = [len(client.classes) for client in scenario.clients]
    task = make_task(config.loss, config.metrics, config.class_weights, scenario.labels, classes, brought)
    if config.class_weights and not scenario.labels_agree and task.kind == "classes":
        raise UserError("class_weights needs clients that number the same classes alike: use balanced-cross-entropy.")
    for k, client in enumerate(scenario.clients):
        targets = scenario.targets(k, client.test)
        for metric in task.metrics:
            check_defined(metric, len(client.classes), targets, client.name)
    return task
