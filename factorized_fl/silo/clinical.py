"""Clinical metrics that a site chooses to show the coordinator after the last round; by default none.

Classes travel as numbers, in the site's own order, because their names stay at the site. This module does not import
PyTorch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.report.listing import NamedTable
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.messages import BadMessage, Message
from factorized_fl.silo.status import run_lines

if TYPE_CHECKING:
    from factorized_fl.tasks.clinical import ClinicalMetrics, Measured

CLINICAL = "clinical"  # the field of a message and of a record
_OVERALL = ("balanced-accuracy", "brier", "calibration-error")
_OF_A_CLASS = ("auroc", "sensitivity", "specificity")
_COUNTS = "confusion"
_SHAREABLE = (*_OVERALL, *_OF_A_CLASS, _COUNTS)
_MOST_CLASSES, _MOST_COUNTED = 300, 50  # a message's header is short


def check_shared(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics that a site shares, each once; raise UserError for an unknown one, or none beside."""
    if "none" in names and len(set(names)) > 1:
        raise UserError(f"--share-metrics {' '.join(names)} asks for none and for some: give one or the other.")
    for name in names:
        if name not in (*_SHAREABLE, "all", "none"):
            raise unknown("metric to share", name, (*_SHAREABLE, "all", "none"))
    if "all" in names:
        return _SHAREABLE
    return tuple(name for name in _SHAREABLE if name in names)


def shared_metrics(found: "ClinicalMetrics", names: Sequence[str]) -> dict[str, Any]:
    """Return the metrics with these names as numbers of a message; those of very many classes are left out."""
    classes = len(found.classes)
    overall = {name: _numbers(getattr(found, name.replace("-", "_"))) for name in names if name in _OVERALL}
    if classes > _MOST_CLASSES:
        return overall
    each = {name: [_numbers(getattr(of, name)) for of in found.classes] for name in names if name in _OF_A_CLASS}
    counts = {_COUNTS: found.confusion} if _COUNTS in names and classes <= _MOST_COUNTED else {}
    return {**overall, **each, **counts}


def _numbers(found: "Measured") -> list[float | int | None]:
    known = [round(number, 4) if number == number else None for number in (found.value, found.low, found.high)]
    return [*known, found.cases]


def read_shared(answer: Message) -> dict[str, Any] | None:
    """Return the metrics in a site's answer, None without any; raise BadMessage for anything else."""
    given = answer.fields.get(CLINICAL)
    if given is None:
        return None
    if not isinstance(given, dict) or not all(_is_valid(name, value) for name, value in given.items()):
        raise BadMessage("its clinical metrics are malformed")
    return given


def _is_valid(name: str, value: object) -> bool:
    if name in _OVERALL:
        return _is_measured(value)
    if not isinstance(value, list) or len(value) > _MOST_CLASSES:
        return False
    if name in _OF_A_CLASS:
        return all(map(_is_measured, value))
    square = all(isinstance(row, list) and len(row) == len(value) <= _MOST_COUNTED for row in value)
    return name == _COUNTS and square and all(_is_count(count) for row in value for count in row)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _is_measured(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 4 or not _is_count(value[3]):
        return False
    return all(
        number is None or (isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1)
        for number in value[:3]
    )


# -- the coordinator's table


def reported_table(kit: Kit) -> NamedTable | None:
    """Return the coordinator's table of the metrics that sites report, None if no site does."""
    if not kit.is_coordinator:
        return None
    headings = ("site", "metric", "of", "value (95% interval)", "cases")
    table = NamedTable(headings, "Metrics that sites report", left=headings[:3])
    for row in run_lines(kit, "metrics.jsonl"):
        for cells in _rows(row.get(CLINICAL) or {}):
            table.add_row(str(row["domain"]), *cells)
    return table if table.rows else None


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of a row after the site's name; confusion counts are in the file only."""
    for name, value in found.items():
        if name in _OVERALL:
            yield name, "all", _words(value), str(value[3])
        elif name in _OF_A_CLASS:
            for number, one in enumerate(value, start=1):
                yield name, f"class {number}", _words(one), str(one[3])


def _words(found: Sequence[float | None]) -> str:
    if found[0] is None:
        return "undefined"
    return f"{found[0]:.3f} (no interval)" if found[1] is None else f"{found[0]:.3f} ({found[1]:.3f} to {found[2]:.3f})"
