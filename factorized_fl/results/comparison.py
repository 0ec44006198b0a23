"""A comparison of methods: a row for each, from its runs with several seeds and their controls."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from factorized_fl.core.errors import UserError
from factorized_fl.core.toml_text import to_toml_value
from factorized_fl.methods import METHODS
from factorized_fl.results.control import BASELINE
from factorized_fl.results.effect import CONTROL, Effect, effect_of, measure_effect
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.references import DATA_SETTINGS, find_control
from factorized_fl.results.schema import ACCURACY, SUMMARY, inactive
from factorized_fl.results.words import method_title

_MOST_NAMED = 3  # methods that a sentence names for one value of a setting; more are "the others"

# -- rows


@dataclass(frozen=True)
class Comparison:
    """One method's row in a comparison."""

    method: str
    accuracy: float  # the mean score by the primary metric
    client_spread: float  # standard deviation between clients, averaged over seeds
    seed_spread: float | None  # standard deviation between the means of seeds
    up_bytes: float | None  # of one run
    down_bytes: float | None
    effect: Effect | None = None  # over the method's control
    alone: Effect | None = None  # over Stand-Alone, the second reference
    diverged: tuple[int, ...] = ()  # clients, with any seed
    inactive: int = 0  # runs in which the method had no effect, such as a split
    plain: float | None = None  # accuracy with plain statistics, and with recalibrated ones
    recalibrated: float | None = None
    differs: dict[str, Any] = field(default_factory=dict)  # settings in which the compared methods differ
    metric: str = ACCURACY


@dataclass
class Variant:
    """Runs that differ in nothing but the seed."""

    first: RunFiles
    label: str
    runs: dict[int, tuple[int, RunFiles]] = field(default_factory=dict)  # by seed: number in the list of runs, run
    controls: dict[int, RunFiles] = field(default_factory=dict)  # complete ones, by seed

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

    def against(self, references: Mapping[int, RunFiles], name: str = "") -> Effect | None:
        """Return the effect over reference runs, by seed, for the seeds that both have; None without any."""
        ours = self.results
        seeds = sorted(ours.keys() & references.keys())
        return measure_effect([ours[seed] for seed in seeds], [references[seed] for seed in seeds], name)

    @property
    def effect(self) -> Effect | None:
        """Return the effect over the controls; None without any."""
        return self.against(self.controls, CONTROL)

    def _test_mean(self, kind: str) -> float | None:
        """Return the mean score on test images with one kind of BatchNorm statistics, as far as it is recorded."""
        return _mean([run.summary["test_means"].get(kind) for run in self.results.values() if run.summary])

    def row(self, base: "Variant | None") -> Comparison | None:
        """Return the comparison's row, with Stand-Alone runs as `base`; None without a result."""
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
            effect=self.effect,
            alone=self.against(base.results) if base is not None and base is not self else None,
            diverged=tuple(sorted({result["client"] for final in finals for result in final if result["diverged"]})),
            inactive=sum(inactive(run.summary) for run in self.results.values()),
            plain=self._test_mean("plain"),
            recalibrated=self._test_mean("recalibrated"),
            metric=self.first.metric,
        )


def differing(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return for each variant its values of the training settings and options in which the variants differ.

    An option counts where several variants have it from the same class, so that it means the same for them. Settings
    that define a comparison or a control do not count.
    """
    ignored = {*DATA_SETTINGS, "method", "preset", "profile", "seed", "control"}
    configs = [variant.first.config for variant in variants]
    # A setting that only some runs have came with a later version, whose default is the earlier behaviour.
    common = [name for name in configs[0] if name not in ignored and all(name in config for config in configs)]
    names = [name for name in common if any(config[name] != configs[0][name] for config in configs)]
    found = [{name: config[name] for name in names} for config in configs]
    of_option: dict[tuple[str, type], list[int]] = {}
    for at, variant in enumerate(variants):
        for name in variant.first.options:
            if origin := _origin(variant.first.method, name):
                of_option.setdefault((name, origin), []).append(at)
    for (name, _), having in of_option.items():
        values = [variants[at].first.options[name] for at in having]
        if any(value != values[0] for value in values):
            for at, value in zip(having, values, strict=True):
                found[at][name] = value
    return found


def _origin(method: str, option: str) -> type | None:
    """Return the class that introduces an option of a method; None for a method that is not loaded."""
    classes = METHODS[method].__mro__ if method in METHODS else ()
    return next((kind for kind in reversed(classes) if option in vars(kind).get("__annotations__", {})), None)


def difference_banner(labels: Sequence[str], differs: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that names each setting in which methods differ, with the methods of each value; or nothing."""
    parts = []
    for name in dict.fromkeys(name for values in differs for name in values):
        of_value: dict[str, list[str]] = {}
        for label, values in zip(labels, differs, strict=True):
            if name in values:
                of_value.setdefault(to_toml_value(values[name]), []).append(label)
        most = max(of_value.values(), key=len)
        others = len(most) > _MOST_NAMED and sum(map(len, of_value.values())) == len(labels)
        texts = [f"{value} for {_listed(of)}" for value, of in of_value.items() if of is not most or not others]
        texts += [f"{value} for the others" for value, of in of_value.items() if of is most and others]
        parts.append(f"{name} is {', '.join(texts)}")
    return f"Not everything is equal: {'; '.join(parts)}." if parts else ""


def _listed(names: Sequence[str]) -> str:
    """Return names as part of a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def compare_methods(
    runs: Mapping[str, Sequence[RunFiles]], controls: Mapping[str, Sequence[RunFiles]] | None = None
) -> list[Comparison]:
    """Return a row for each method from its runs and their controls; raise UserError for a run without a result."""
    variants = {}
    for method, of_method in runs.items():
        if not all(run.final for run in of_method):
            raise UserError(f"No client was tested with {method}: choose a smaller dropout, or more rounds.")
        by_seed = {run.seed: (index, run) for index, run in enumerate(of_method)}
        references = {run.seed: run for run in (controls or {}).get(method, [])}
        variants[method] = Variant(of_method[0], method_title(method), by_seed, references)
    rows = {name: variant.row(variants.get(BASELINE)) for name, variant in variants.items()}
    differs = dict(zip(variants, differing(list(variants.values())), strict=True))
    return [replace(row, method=name, differs=differs[name]) for name, row in rows.items() if row is not None]


def group_runs(runs: Sequence[RunFiles], controls: Sequence[RunFiles] = ()) -> tuple[list[Variant], list[str]]:
    """Return the runs grouped by everything but the seed, Stand-Alone first, and notes on runs left out.

    Each group has those of the `controls` that are controls of its runs.
    """
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
            if control := find_control(run, [*controls, *runs]):
                variant.controls[run.seed] = control
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
    return json.dumps([_row_record(row) for row in rows], indent=2).encode()


def _row_record(row: Comparison) -> dict[str, Any]:
    effects = {"effect": row.effect, "alone": row.alone}
    diverged = [k + 1 for k in row.diverged]
    return asdict(row) | {name: effect and effect.record() for name, effect in effects.items()} | {"diverged": diverged}


def comparison_of(record: Mapping[str, Any]) -> Comparison:
    """Return a row from its record in comparison.json."""
    effects = {name: effect_of(record[name]) if record[name] else None for name in ("effect", "alone")}
    return Comparison(**{**record, **effects, "diverged": tuple(k - 1 for k in record["diverged"])})


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
