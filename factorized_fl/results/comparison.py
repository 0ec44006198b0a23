"""The one place that compares runs: which runs may be compared, rows per method, and verdicts per client."""

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.results.reading import RunFiles, find_runs, is_run, method_title, read_run
from factorized_fl.results.schema import ALONE, SUMMARY, FinalResult
from factorized_fl.results.statistic import Difference, client_difference

BASELINE = "stand-alone"  # the method that federations are judged against

# The settings that assign images and labels to clients; runs that differ in any of them cannot be compared.
DATA_SETTINGS = (
    *("dataset", "image_size", "channels", "partition", "alpha", "permuted", "permutation_seed", "partition_seed"),
    *("clients", "clients_per_domain", "images_per_client", "test_images", "scrambled", "train_share", "score"),
)


# -- verdicts


@dataclass(frozen=True)
class Verdict:
    """One client's accuracy against that of its own Stand-Alone model, over all seeds."""

    client: int
    domain: str
    alone: float
    together: float
    error: float  # standard error of the difference, from the sizes of the test sets

    @property
    def difference(self) -> float:
        """Return the gain in accuracy."""
        return self.together - self.alone

    @property
    def word(self) -> Literal["helped", "harmed", "no difference"]:
        """Return the decision of results/statistic.py in one word."""
        return Difference(self.difference, self.error).verdict


def client_verdicts(runs: Sequence[Sequence[FinalResult]], baselines: Sequence[Sequence[FinalResult]]) -> list[Verdict]:
    """Return a verdict for every client tested in both, from the final results of runs and of baselines by seed."""
    pairs: dict[int, list[tuple[FinalResult, FinalResult]]] = {}
    for run, baseline in zip(runs, baselines, strict=True):
        alone = {result["client"]: result for result in baseline}
        for result in run:
            if result["client"] in alone:
                pairs.setdefault(result["client"], []).append((result, alone[result["client"]]))
    verdicts = []
    for client, both in sorted(pairs.items()):
        sides = list(zip(*both, strict=True))
        together, apart = (statistics.fmean(result["accuracy"] for result in side) for side in sides)
        error = _error_of(sides)
        verdicts.append(Verdict(client, both[0][0]["domain"], alone=apart, together=together, error=error))
    return verdicts


def _error_of(sides: Sequence[Sequence[FinalResult]]) -> float:
    """Return the standard error of a client's mean difference over seeds, from both sides' results of each seed."""
    if any(result["correct"] is None for side in sides for result in side):  # the primary metric is not accuracy
        errors = [result["score_error"] for side in sides for result in side]
        known = [error for error in errors if error is not None]
        return math.hypot(*known) / len(sides[0]) if len(known) == len(errors) else math.inf
    ours, theirs = ([(result["correct"] or 0, result["total"]) for result in side] for side in sides)
    return client_difference(ours, theirs).error


# -- which runs may be compared


def different_data(runs: Sequence[RunFiles]) -> str | None:
    """Return in words why the runs' clients are not the same; None if they are. Seeds may differ."""
    first = runs[0]
    of_seed: dict[int, RunFiles] = {}
    for other in runs:
        names = f"'{first.path.name}' and '{other.path.name}'"
        ours, theirs = ([(c["domain"], len(c["classes"])) for c in run.clients] for run in (first, other))
        for name in DATA_SETTINGS:
            if name == "clients" and first.party and ours == theirs:
                continue  # a site's configuration counts all sites, that of its Stand-Alone run counts one
            if name in first.config and name in other.config and first.config[name] != other.config[name]:
                return f"{name} is {first.config[name]!r} in one and {other.config[name]!r} in another ({names})"
        if ours and theirs and ours != theirs and len(first.clients[0]["classes"]) and len(other.clients[0]["classes"]):
            return f"{names} have different clients"
        same = of_seed.setdefault(other.seed, other)
        if different_images(same.clients, other.clients):
            return f"'{same.path.name}' and '{other.path.name}' have different images"
    return None


def different_images(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the marks in two runs' clients.json tell different images; older runs have no marks."""
    marks = ((one.get("images"), other.get("images")) for one, other in zip(ours, theirs, strict=False))
    return any(one and other and one != other for one, other in marks)


def difference_lines(run: RunFiles, base: RunFiles) -> list[str]:
    """Return in words which training settings, besides the method and its options, differ, the base's value first."""
    ignored = {*DATA_SETTINGS, "method", "preset", "seed"}
    if run.party:  # a site's Stand-Alone run has as many rounds as the site trained, not as many as planned
        ignored |= {"rounds", "fraction"}
    # A setting that only one of them has came with a later version, whose default is the earlier behaviour.
    both = [name for name in run.config if name in base.config and name not in ignored]
    differing = [name for name in both if run.config[name] != base.config[name]]
    return [f"{name} {base.config[name]!r} instead of {run.config[name]!r}" for name in differing]


# -- the baseline


def read_baseline(path: Path) -> RunFiles:
    """Return a Stand-Alone run; raise UserError for a run of another method."""
    base = read_run(find_runs([path])[0])
    if base.method != BASELINE:
        raise UserError(f"The baseline '{path}' is a run of {base.title}: it must be one of Stand-Alone.")
    return base


def check_baseline(run: RunFiles, base: RunFiles) -> None:
    """Raise UserError if the baseline has other clients or another seed than the run."""
    if complaint := different_data([run, base]):
        raise UserError(f"'{base.path}' cannot be the baseline of '{run.path}', as {complaint}.")
    if base.seed != run.seed and "seed" in base.config:
        raise UserError(f"'{base.path}' cannot be the baseline of '{run.path}': their seeds differ.")


def find_baseline(run: RunFiles, runs: Sequence[RunFiles], given: RunFiles | None = None) -> RunFiles | None:
    """Return the given baseline, or a complete Stand-Alone run of the same clients among the runs or beside the run."""
    if run.method == BASELINE:
        return None
    if given:
        check_baseline(run, given)
        return given
    found = [other for other in runs if other.method == BASELINE and other.seed == run.seed]
    beside = run.path.resolve().parent / (ALONE if run.party else f"{BASELINE}-seed{run.seed}")
    if not found and is_run(beside):
        found = [read_run(beside)]
    fitting = [other for other in found if other.complete and not different_data([run, other])]
    return min(fitting, key=lambda other: len(difference_lines(run, other)), default=None)


# -- rows


@dataclass(frozen=True)
class Comparison:
    """One method's row in a comparison."""

    method: str
    accuracy: float
    client_spread: float  # between clients, averaged over seeds
    seed_spread: float | None  # between seeds' means
    up_bytes: float | None  # of one run
    down_bytes: float | None
    verdicts: tuple[Verdict, ...]  # against Stand-Alone, if the comparison includes it
    diverged: tuple[int, ...] = ()  # clients, with any seed

    def clients(self, word: str) -> list[int]:
        """Return the clients with this verdict, numbered from 1."""
        return [verdict.client + 1 for verdict in self.verdicts if verdict.word == word]

    @property
    def better(self) -> int:
        """Return the number of clients above their own Stand-Alone model, significantly or not."""
        return sum(verdict.difference > 0 for verdict in self.verdicts)


@dataclass
class Variant:
    """Runs that differ in nothing but the seed."""

    first: RunFiles
    label: str
    runs: dict[int, tuple[int, RunFiles]] = field(default_factory=dict)  # by seed: number in the list of runs, run

    @property
    def settings(self) -> dict[str, Any]:
        """Return all settings and options except seed and preset."""
        everything = {**self.first.config, **self.first.options}
        return {name: value for name, value in everything.items() if name not in ("seed", "preset")}

    @property
    def results(self) -> dict[int, RunFiles]:
        """Return the runs that have a result, by seed."""
        return {seed: run for seed, (_, run) in self.runs.items() if run.final}

    @property
    def seconds(self) -> float | None:
        """Return the mean duration of the runs whose rounds were all timed."""
        timed = [run for run in self.results.values() if len(run.seconds) >= run.done > 0]
        return statistics.fmean(sum(run.seconds.values()) for run in timed) if timed else None

    def against(self, base: "Variant") -> list[Verdict]:
        """Return the verdicts over the seeds that both have."""
        ours, theirs = self.results, base.results
        seeds = sorted(ours.keys() & theirs.keys())
        return client_verdicts([ours[seed].final for seed in seeds], [theirs[seed].final for seed in seeds])

    def row(self, base: "Variant | None") -> Comparison | None:
        """Return the comparison's row; None without a result."""
        finals = [run.final for run in self.results.values()]
        if not finals:
            return None
        accuracies = [[result["accuracy"] for result in final] for final in finals]
        means = [statistics.fmean(values) for values in accuracies]
        return Comparison(
            method=self.first.method,
            accuracy=statistics.fmean(means),
            client_spread=statistics.fmean(map(statistics.pstdev, accuracies)),
            seed_spread=statistics.stdev(means) if len(means) > 1 else None,
            up_bytes=_mean([run.total("up_bytes") for run in self.results.values()]),
            down_bytes=_mean([run.total("down_bytes") for run in self.results.values()]),
            verdicts=tuple(self.against(base)) if base is not None and base is not self else (),
            diverged=tuple(sorted({result["client"] for final in finals for result in final if result["diverged"]})),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def compare_methods(runs: Mapping[str, Sequence[RunFiles]]) -> list[Comparison]:
    """Return a row for each method from its runs; raise UserError if a method has a run without a result."""
    variants = {}
    for method, of_method in runs.items():
        if not all(run.final for run in of_method):
            raise UserError(f"No client was tested with {method}: choose a smaller dropout, or more rounds.")
        by_seed = {run.seed: (index, run) for index, run in enumerate(of_method)}
        variants[method] = Variant(of_method[0], method_title(method), by_seed)
    rows = {name: variant.row(variants.get(BASELINE)) for name, variant in variants.items()}
    return [replace(row, method=name) for name, row in rows.items() if row is not None]


def group_runs(runs: Sequence[RunFiles]) -> tuple[list[Variant], list[str]]:
    """Return the runs grouped by everything but the seed, Stand-Alone first, and notes on runs left out."""
    variants: dict[str, Variant] = {}
    notes: list[str] = []
    for index, run in enumerate(runs):
        new = Variant(run, run.title)
        key = json.dumps(new.settings, sort_keys=True, default=str) if run.config else str(run.path)
        variant = variants.setdefault(key, new)
        if run.seed in variant.runs:
            kept = variant.runs[run.seed][1]
            notes.append(f"'{run.path.name}' is the same configuration as '{kept.path.name}': only the latter counts.")
        else:
            variant.runs[run.seed] = (index, run)
    found = list(variants.values())
    for variant in found:
        variant.label = _label(variant, [other for other in found if other.first.title == variant.first.title])
    order = [BASELINE, *METHODS]
    found.sort(key=lambda v: order.index(v.first.method) if v.first.method in order else len(order))
    return found, notes


def _label(variant: Variant, same: Sequence[Variant]) -> str:
    """Return the variant's title, with the settings that tell it from the variants with the same title."""
    if len(same) == 1:
        return variant.first.title
    names = [name for name, value in variant.settings.items() if any(v.settings.get(name) != value for v in same)]
    shown = ", ".join(f"{name}={variant.settings[name]}" for name in names) or variant.first.path.name
    return f"{variant.first.title} ({shown})"


# -- comparison.json


def comparison_json(rows: Sequence[Comparison]) -> bytes:
    """Return the content of comparison.json."""
    return json.dumps([asdict(row) | {"better": row.better} for row in rows], indent=2).encode()


def run_folder(name: str, seed: int | Literal[""]) -> str:
    """Return the folder of an entry's run within the folder of a comparison, in characters that file names may have."""
    return f"{re.sub(r'[^A-Za-z0-9.=_+-]+', '-', name)}-seed{seed}"


def refuse_losing(file: Path, methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise UserError if a comparison of these methods and seeds would drop some that the file has."""
    try:
        there = [str(row["method"]) for row in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError):
        return  # there is no comparison, or none that can be read
    names = [name for name in there if name not in methods]
    numbers = [str(seed) for seed in _complete_seeds(file.parent, there) if seed not in seeds]
    if lost := [f"the {what} {', '.join(those)}" for what, those in (("method", names), ("seed", numbers)) if those]:
        raise UserError(
            f"The comparison in '{file.parent}' also has {' and '.join(lost)}, which would be lost: "
            "name all that it has, or choose another --out."
        )


def _complete_seeds(folder: Path, methods: Sequence[str]) -> list[int]:
    """Return the seeds of which every method has a complete run; the others were started after the comparison."""
    names = [path.parent.name for path in folder.glob(f"*/{SUMMARY}")]
    found = []
    for begin in (run_folder(method, "") for method in methods):
        ends = [name.removeprefix(begin) for name in names if name.startswith(begin)]
        found.append({int(end) for end in ends if end.isdecimal()})
    return sorted(set.intersection(*found)) if found else []
