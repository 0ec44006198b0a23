"""The files of a run directory: their names, their records, and the cleaning of records for display.

config.toml            the complete configuration
environment.json       versions, machine, commit
clients.json           the participants: classes, numbers of images, marks of the split and of the images
metrics.jsonl          one line per round and client, append-only; the first client is "client 1", as in summary.json
timing.jsonl           one line per round: seconds, on a GPU peak_gib, with encryption the seconds that it took
                       (apart from the metrics, because metrics of equal runs are equal)
mixing/round-N.safetensors   mixing and similarity matrices of round N
traces/round-N.safetensors   similarity of u and v, sparsity of mu after round N, for methods that have them
checkpoint.safetensors       everything needed to continue
right.safetensors      which test images each client classified right in its final test, with marks of the images
classes.json           which classes each client's were last matched with, in runs with `align`
analysis.json          confusion matrices and sizes of factors, written at the end
audit.json             how well attacks work on what each party saw, written by `ffl audit`
summary.json           written when the run is complete
report.html            the page, which reads all of the above
.lock                  exists while a process works in the directory
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

CONFIG, ENVIRONMENT, CLIENTS = "config.toml", "environment.json", "clients.json"
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
CLASSES = "classes.json"
AUDIT = "audit.json"
ANALYSIS, SUMMARY, RIGHT = "analysis.json", "summary.json", "right.safetensors"
CHECKPOINT, PREVIOUS, LOCK = "checkpoint.safetensors", "previous.safetensors", ".lock"
MIXING, TRACES = "mixing", "traces"
LARGEST_STATE = 100_000  # entries of a tensor of a method's memory that is kept for the report

# The kit of a party of a federation between organisations holds run directories of its own.
FEDERATION = "federation.toml"  # the file that marks a kit
RUN, ALONE = "run", "alone"  # the folders of the federation's run and of the Stand-Alone run
COORDINATOR = "coordinator"  # the name of the party without data

# Limits on the memory that a reader allocates because of a damaged line.
MOST_CLIENTS, MOST_ROUNDS = 100_000, 1_000_000

Record = dict[str, Any]  # one JSON object as it is in a file


ACCURACY = "accuracy"  # the primary metric unless a run names another
KINDS = ("plain", "recalibrated")  # of BatchNorm statistics; the last lines of metrics.jsonl have scores of both


class ClientEntry(TypedDict):
    """A client of clients.json, cleaned."""

    name: str
    domain: str
    classes: list[str]
    test: int | None  # number of test images
    images: str  # changes with the client's images and labels; empty in older runs


class MetricsLine(TypedDict):
    """A line of metrics.jsonl, cleaned."""

    round: int
    client: int
    domain: str
    steps: int
    up_bytes: int
    down_bytes: int
    up_formula: int  # numbers counted by the paper's cost formula
    down_formula: int
    epsilon: NotRequired[float]  # spent so far; absent without differential privacy
    effective_peers: float | None  # None if the client received nothing; absent in older runs
    up_roles: dict[str, int]  # bytes by role
    down_roles: dict[str, int]
    accuracy: float | None  # the score by the primary metric; None, like the next two, if the client was not tested
    correct: int | None  # None as well if the primary metric is not accuracy
    total: int | None
    score_error: float | None  # standard error of such a metric; None for accuracy
    loss: NotRequired[float | None]  # None if it is not finite; absent in older summaries


class FinalResult(TypedDict):
    """The last test of one client."""

    client: int
    domain: str
    round: int
    accuracy: float  # the score by the primary metric
    correct: int | None
    total: int
    score_error: float | None
    diverged: bool


class Summary(TypedDict):
    """The content of summary.json, cleaned."""

    method: str
    up_bytes: float | None
    down_bytes: float | None
    formula_a_bytes: float | None
    formula_b_bytes: float | None
    activated: bool | None  # None if the method has no condition for it, or the run is older
    test_means: dict[str, float]  # mean score on test images by kind of statistics; empty for an older run
    clients: list[FinalResult]


def numbered_from_1(record: Mapping[str, Any]) -> Record:
    """Return a line of metrics.jsonl or a client of summary.json as files have it: client 0 is "client 1"."""
    return {**record, "client": f"client {record['client'] + 1}"} if "client" in record else dict(record)


def numbered_from_0(record: Record) -> Record:
    """Return such a record with its client counted from 0; earlier versions wrote that number."""
    found = re.fullmatch(r"client ([1-9]\d{0,8})", str(record.get("client")))
    return {**record, "client": int(found[1]) - 1} if found else record


def diverged(record: Mapping[str, Any]) -> bool:
    """Return whether a test of metrics.jsonl or summary.json has no finite loss; False where no loss is recorded."""
    return score_of(record) is not None and record.get("loss", 0.0) is None


def inactive(summary: Summary | None) -> bool:
    """Return whether a method is known to have had no effect, such as no split of a cluster."""
    return summary is not None and summary["activated"] is False


def inactivity_line(title: str, runs: str = "") -> str:
    """Return a sentence that says that a method had no effect."""
    activated = f"{title} did not activate{runs}: the step that distinguishes it never happened"
    return f"{activated}, so its results are not evidence for it."


def score_of(record: Mapping[str, Any]) -> float | None:
    """Return the score of a test of metrics.jsonl or summary.json by its primary metric; None without a test."""
    return record.get("score", record["accuracy"])


def metric_of(record: Mapping[str, Any]) -> str:
    """Return the name of a test's primary metric; with a minus if less is better, as its score is the negative."""
    name, value = next(iter(as_record(record.get("metrics")).items()), (ACCURACY, None))
    return f"-{name}" if value and record.get("score") == -value else name


def metric_of_tests(lines: Sequence[Record], final: Any) -> str:
    """Return the primary metric of the lines of metrics.jsonl or of the clients of summary.json; else accuracy."""
    tests = [*lines, *map(as_record, final if isinstance(final, list) else [])]
    return next((metric_of(test) for test in reversed(tests) if as_record(test.get("metrics"))), ACCURACY)


def number(value: Any) -> float | None:
    """Return a finite number as a float, anything else as None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def whole(value: Any) -> int | None:
    """Return an integer, anything else as None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_record(value: Any) -> Record:
    """Return a dictionary, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def words(value: Any) -> list[str]:
    """Return the entries of a list as strings; an empty list for anything else."""
    return [str(word) for word in value] if isinstance(value, list) else []


_CLEANED: dict[Any, Callable[[Any], Any]] = {  # by the type of a field: the value, or a default if it is not valid
    str: lambda value: "" if value is None else str(value),
    bool | None: lambda value: value if isinstance(value, bool) else None,
    int: lambda value: whole(value) or 0,
    int | None: whole,
    float | None: number,
    list[str]: words,
    dict[str, int]: lambda value: {str(k): v for k, v in as_record(value).items() if whole(v) is not None},
}


def _clean(record: Mapping[str, Any], fields: type) -> Any:
    """Return the fields of a TypedDict that have one of the types above, each with a valid value."""
    return {name: _CLEANED[kind](record.get(name)) for name, kind in fields.__annotations__.items() if kind in _CLEANED}


def clean_client(client: Mapping[str, Any], index: int) -> ClientEntry:
    """Return an entry of clients.json with every field present and of the right type."""
    return _clean({**client, "name": client.get("name") or f"client {index + 1}"}, ClientEntry)


def clean_metrics(line: Mapping[str, Any], clients: int = MOST_CLIENTS) -> MetricsLine | None:
    """Return a line of metrics.jsonl with every field present; None without a valid round and client."""
    found: MetricsLine = _clean(line, MetricsLine)
    if whole(line.get("client")) is None or not (1 <= found["round"] <= MOST_ROUNDS and 0 <= found["client"] < clients):
        return None
    if (spent := number(line.get("epsilon"))) is not None:
        found["epsilon"] = spent
    correct, total = found["correct"], found["total"]
    if "score" in line:  # the primary metric is not accuracy
        found["accuracy"], found["correct"] = number(line["score"]) if total else None, None
    elif correct is None or not total or found["accuracy"] is None or not 0 <= correct <= total:
        found["accuracy"] = found["correct"] = found["total"] = None
    if found["accuracy"] is not None and "loss" in line:
        found["loss"] = line["loss"]
    return found


def clean_summary(summary: Mapping[str, Any], clients: int = MOST_CLIENTS) -> Summary:
    """Return the content of summary.json with every field present; clients without a valid result are left out."""
    given = summary.get("clients")
    given = given if isinstance(given, list) else []
    lines = [clean_metrics({"round": 1, **as_record(line)}, clients) for line in given]
    results = [result for line in lines if line and (result := final_result(line))]
    means = as_record(summary.get("score_means"))
    test = {kind: mean for kind in KINDS if (mean := number(as_record(means.get(kind)).get("test"))) is not None}
    return cast(Summary, {**_clean(summary, Summary), "clients": results, "test_means": test})


def final_result(record: MetricsLine) -> FinalResult | None:
    """Return the test in a line of metrics.jsonl; None if the client was not tested."""
    if record["accuracy"] is None:
        return None
    found = {name: record.get(name) for name in FinalResult.__annotations__} | {"diverged": diverged(record)}
    return cast(FinalResult, found)
