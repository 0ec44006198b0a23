"""Clinical metrics of a model in files, in words and for subgroups: metrics.json, metrics.csv and the model card."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.tasks.clinical import FEW, ClassMetrics, ClinicalMetrics, Measured, clinical_metrics

T = TypeVar("T", bound=Sequence[str])
JSON_FILE, CSV_FILE = "metrics.json", "metrics.csv"
OVERALL = ("accuracy", "balanced_accuracy", "brier", "calibration_error")
OF_A_CLASS = ("auroc", "sensitivity", "specificity")
_MOST_GROUPS = 50
_COLUMNS = ("column", "group", "metric", "class", "value", "low", "high", "cases")


@dataclass(frozen=True)
class Group:
    """The metrics of all examples, or of those with one value in a column."""

    column: str  # empty for all examples
    value: str
    metrics: ClinicalMetrics


@dataclass(frozen=True)
class ClinicalReport:
    """The metrics of all examples and of each subgroup."""

    classes: tuple[str, ...]
    groups: tuple[Group, ...]  # the first holds all examples

    @property
    def whole(self) -> ClinicalMetrics:
        """Return the metrics of all examples."""
        return self.groups[0].metrics

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for the classes, and for each subgroup, with too few cases."""
        lines = []
        for group in self.groups:
            few = [
                (name, found.cases)
                for name, found in zip(self.classes, group.metrics.classes, strict=True)
                if found.few
            ]
            if not few:
                continue
            where = f"In the subgroup {group.column} = {group.value}, " if group.column else ""
            names = ", ".join(f"{_plain(name)} ({cases})" for name, cases in few[:5])
            more = f" and {len(few) - 5} more" if len(few) > 5 else ""
            start = "fewer than" if where else "Fewer than"
            lines.append(f"{where}{start} {FEW} cases: {names}{more}; their metrics are uncertain.")
        return lines


def clinical_report(
    scores: torch.Tensor,
    labels: torch.Tensor,
    classes: Sequence[str],
    threshold: float = 0.5,
    subgroups: Mapping[str, Sequence[str]] | None = None,
) -> ClinicalReport:
    """Return the metrics from class scores [N, C] and labels [N]; raise UserError for a column with too many groups.

    Args:
        scores: the outputs of the model before softmax.
        labels: the true classes.
        classes: the names of the classes.
        threshold: the probability from which an example counts as positive for a class.
        subgroups: by column the value of each example.
    """
    probabilities = scores.double().softmax(1).numpy()
    truth = labels.numpy()
    groups = [Group("", "", clinical_metrics(probabilities, truth, threshold))]
    for column, values in check_subgroups(subgroups or {}).items():
        for name in sorted(set(values)):
            chosen = np.array([value == name for value in values])
            groups.append(Group(column, name, clinical_metrics(probabilities[chosen], truth[chosen], threshold)))
    return ClinicalReport(tuple(classes), tuple(groups))


def check_subgroups(subgroups: Mapping[str, T]) -> dict[str, T]:
    """Return the values of each column; raise UserError for a column with too many different ones."""
    for column, values in subgroups.items():
        if (count := len(set(values))) > _MOST_GROUPS:
            raise UserError(
                f"The column '{column}' has {count} different values, and at most {_MOST_GROUPS} can be subgroups: put "
                "its values into fewer groups, such as decades of age."
            )
    return dict(subgroups)


def write_clinical(report: ClinicalReport, folder: Path) -> None:
    """Write metrics.json and metrics.csv into a folder; raise UserError if that fails."""
    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JSON_FILE, json.dumps(clinical_record(report), indent=2, ensure_ascii=False).encode())
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows(_rows(report))
    write_atomically(folder / CSV_FILE, text.getvalue().encode())


def clinical_record(report: ClinicalReport) -> dict[str, Any]:
    """Return the content of metrics.json; a number that is undefined is null."""
    groups = []
    for group in report.groups:
        found = group.metrics
        record: dict[str, Any] = {"column": group.column, "group": group.value, "images": found.cases}
        record |= {name: _known(asdict(getattr(found, name))) for name in OVERALL}
        record["classes"] = [
            {"class": name, "cases": each.cases}
            | {metric: _known(asdict(getattr(each, metric))) for metric in OF_A_CLASS}
            for name, each in zip(report.classes, found.classes, strict=True)
        ]
        groups.append(record | {"confusion": found.confusion})
    return {
        "threshold": report.whole.threshold,
        "interval": 0.95,
        "classes": report.classes,
        "warnings": report.warnings,
        "groups": groups,
    }


def _known(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def _rows(report: ClinicalReport) -> Iterator[tuple[object, ...]]:
    for group in report.groups:
        for metric, name, found in _all_measured(report, group):
            numbers = [number if math.isfinite(number) else "" for number in (found.value, found.low, found.high)]
            yield group.column, group.value, metric, name, *numbers, found.cases


def _all_measured(report: ClinicalReport, group: Group) -> Iterator[tuple[str, str, Measured]]:
    for metric in OVERALL:
        yield metric, "", getattr(group.metrics, metric)
    for name, found in zip(report.classes, group.metrics.classes, strict=True):
        for metric in OF_A_CLASS:
            yield metric, name, getattr(found, metric)


# -- words


def measured_words(found: Measured) -> str:
    """Return a metric with its interval, as in "0.912 (0.871 to 0.941)"."""
    if not math.isfinite(found.value):
        return "undefined"
    interval = f"{found.low:.3f} to {found.high:.3f}" if math.isfinite(found.low) else "no interval"
    return f"{found.value:.3f} ({interval})"


def rows_overall(report: ClinicalReport) -> list[tuple[str, str]]:
    """Return the names and the words of the metrics of all classes together."""
    titles = ("accuracy", "balanced accuracy", "Brier score (0 is best)", "calibration error (0 is best)")
    return [(title, measured_words(getattr(report.whole, name))) for title, name in zip(titles, OVERALL, strict=True)]


def rows_by_class(report: ClinicalReport) -> list[tuple[str, int, str, str, str]]:
    """Return for each class its name, its cases, and the words of AUROC, sensitivity and specificity."""

    def words(found: ClassMetrics) -> tuple[str, str, str]:
        return measured_words(found.auroc), measured_words(found.sensitivity), measured_words(found.specificity)

    return [
        (name, found.cases, *words(found)) for name, found in zip(report.classes, report.whole.classes, strict=True)
    ]


def rows_by_group(report: ClinicalReport) -> list[tuple[str, int, str, str]]:
    """Return for each subgroup its name, its examples, and the words of accuracy and balanced accuracy."""
    return [
        (
            f"{group.column} = {group.value}",
            group.metrics.cases,
            measured_words(group.metrics.accuracy),
            measured_words(group.metrics.balanced_accuracy),
        )
        for group in report.groups[1:]
    ]


def _plain(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)
