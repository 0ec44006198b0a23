"""Several runs side by side: methods by seeds, paired differences per client, accuracy against bytes and time."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS
from factorized_fl.report.exports import Rows, client_rows, downloads
from factorized_fl.report.tables import size
from factorized_fl.results.reading import RunFiles, find_runs, read_run
from factorized_fl.results.rundir import Record
from factorized_fl.results.verdict import Verdict, other_images, verdicts

# What decides who holds which images under which labels; runs that differ in any of it cannot be compared.
_DATA = (
    "dataset",
    "image_size",
    "channels",
    "partition",
    "alpha",
    "permuted",
    "permutation_seed",
    "partition_seed",
    "clients",
    "clients_per_domain",
    "images_per_client",
    "scrambled",
    "train_share",
    "score",
)
_MOST_DIFFERENCES = 60_000  # pairs of variants times clients that a page holds


def different_data(runs: Sequence[RunFiles]) -> str | None:
    """Why the runs' clients are not the same, in words; nothing if they are. Seeds may differ."""
    first = runs[0]
    of_seed: dict[int, RunFiles] = {}
    for other in runs:
        names = f"'{first.path.name}' and '{other.path.name}'"
        ours, theirs = ([(c["domain"], len(c["classes"])) for c in run.clients] for run in (first, other))
        for name in _DATA:
            if name == "clients" and first.party and ours == theirs:
                continue  # a site's configuration counts all sites, that of its run alone counts one
            if name in first.config and name in other.config and first.config[name] != other.config[name]:
                return f"{name} is {first.config[name]!r} in one and {other.config[name]!r} in another ({names})"
        if ours and theirs and ours != theirs and len(first.clients[0]["classes"]) and len(other.clients[0]["classes"]):
            return f"{names} have different clients"
        same = of_seed.setdefault(other.seed, other)
        if other_images(same.clients, other.clients):
            return f"'{same.path.name}' and '{other.path.name}' have different images"
    return None


def read_baseline(path: Path) -> RunFiles:
    """A Stand-Alone run, to judge others by."""
    base = read_run(find_runs([path])[0])
    if base.method != "stand-alone":
        raise UserError(f"The baseline '{path}' is a run of {base.title}: it must be one of Stand-Alone.")
    return base


def check_baseline(run: RunFiles, base: RunFiles) -> None:
    """Refuse a run of other clients, or of the same with another seed."""
    if complaint := different_data([run, base]):
        raise UserError(f"'{base.path}' cannot be the baseline of '{run.path}', as {complaint}.")
    if base.seed != run.seed and "seed" in base.config:
        raise UserError(f"'{base.path}' cannot be the baseline of '{run.path}': their seeds differ.")


def differing(one: RunFiles, other: RunFiles) -> list[str]:
    """Names of the settings of training, besides the method and its options, that differ."""
    ignored = {*_DATA, "method", "preset", "seed"}
    if one.party:  # a site's run alone has as many rounds as the site trained, whatever was planned
        ignored |= {"rounds", "fraction"}
    # What only one of them knows came with a later version, where its default is what was done before.
    both = [name for name in one.config if name in other.config and name not in ignored]
    return [name for name in both if one.config[name] != other.config[name]]


def difference_lines(run: RunFiles, base: RunFiles) -> list[str]:
    """Those settings in words, the base's value first."""
    return [f"{name} {base.config.get(name)!r} instead of {run.config.get(name)!r}" for name in differing(run, base)]


def refuse_losing(file: Path, methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse to replace a comparison by one that lacks some of its methods or seeds."""
    try:
        there = [str(row["method"]) for row in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError):
        return  # there is none, or none that could be lost
    names = [name for name in there if name not in methods]
    numbers = [str(seed) for seed in _seeds_of(file.parent, there) if seed not in seeds]
    if lost := [f"the {what} {', '.join(those)}" for what, those in (("method", names), ("seed", numbers)) if those]:
        raise UserError(
            f"The comparison in '{file.parent}' also has {' and '.join(lost)}, which would be lost: "
            "name all that it has, or choose another --out."
        )


def _seeds_of(folder: Path, methods: Sequence[str]) -> list[int]:
    """The seeds that all methods have complete runs of; those that only some have came after the comparison."""
    names = [path.parent.name for path in folder.glob("*/summary.json")]
    found = []
    for begin in (f"{method}-seed" for method in methods):
        ends = [name.removeprefix(begin) for name in names if name.startswith(begin)]
        found.append({int(end) for end in ends if end.isdecimal()})
    return sorted(set.intersection(*found)) if found else []


class Variant:
    """Runs that differ in nothing but the seed."""

    def __init__(self, run: RunFiles) -> None:
        self.first = run
        self.runs: dict[int, tuple[int, RunFiles]] = {}  # by seed: number in the list of runs, run
        self.label = run.title

    @property
    def settings(self) -> dict[str, Any]:
        """All that was set, flat, but for seed and preset."""
        everything = {**self.first.config, **self.first.options}
        return {name: value for name, value in everything.items() if name not in ("seed", "preset")}

    def results(self) -> list[RunFiles]:
        """The runs that have a result."""
        return [run for _, run in self.runs.values() if run.final]

    def over(self, seeds: Sequence[int]) -> list[Record]:
        """Summaries of the runs with these seeds, as verdicts wants them."""
        return [{"clients": self.runs[seed][1].final} for seed in seeds]


def compare_runs(runs: Sequence[RunFiles]) -> Record:
    """The comparison part of the document."""
    variants, notes = _variants(runs)
    for variant in variants[1:]:
        if lines := difference_lines(variant.first, variants[0].first):
            notes.append(f"{variants[0].label}, unlike {variant.label}, was trained with {', '.join(lines)}.")
    reference = next((i for i, variant in enumerate(variants) if variant.first.method == "stand-alone"), None)
    pairs = len(variants) * (len(variants) - 1) * max(len(run.clients) for run in runs)
    references = range(len(variants)) if pairs <= _MOST_DIFFERENCES else [] if reference is None else [reference]
    differences = {
        str(base): {
            str(other): [_row(verdict) for verdict in _judge(variants[other], variants[base], notes)]
            for other in range(len(variants))
            if other != base
        }
        for base in references
    }
    rows = [_variant_row(variant) for variant in variants]
    for index, row in enumerate(rows):
        found = differences[str(reference)].get(str(index)) if reference is not None else None
        row |= {"helped": None, "harmed": None, "better": None, "compared": 0}
        if found:
            words = [word for *_, word in found]
            better = sum(difference > 0 for _, difference, _, _ in found)
            row |= {"helped": words.count("helped"), "harmed": words.count("harmed")}
            row |= {"better": better, "compared": len(found)}
    return {
        "variants": rows,
        "reference": reference,
        "differences": differences,
        "headline": _headline(rows, reference),
        "downloads": downloads("comparison", table_rows(rows), client_rows(runs)),
        "notes": notes,
    }


def _variants(runs: Sequence[RunFiles]) -> tuple[list[Variant], list[str]]:
    variants: dict[str, Variant] = {}
    notes: list[str] = []
    for index, run in enumerate(runs):
        new = Variant(run)
        key = json.dumps(new.settings, sort_keys=True, default=str) if run.config else str(run.path)
        variant = variants.setdefault(key, new)
        if run.seed in variant.runs:
            kept = variant.runs[run.seed][1]
            notes.append(f"'{run.path.name}' is the same configuration as '{kept.path.name}': only the latter counts.")
            continue
        variant.runs[run.seed] = (index, run)
    found = list(variants.values())
    for variant in found:
        same = [other for other in found if other.first.title == variant.first.title and other is not variant]
        names = [
            name for name, value in variant.settings.items() if any(other.settings.get(name) != value for other in same)
        ]
        if same:
            told = ", ".join(f"{name}={variant.settings[name]}" for name in names) or variant.first.path.name
            variant.label = f"{variant.first.title} ({told})"
    order = ["stand-alone", *METHODS]
    found.sort(key=lambda v: order.index(v.first.method) if v.first.method in order else len(order))
    return found, notes


def _judge(variant: Variant, base: Variant, notes: list[str]) -> list[Verdict]:
    """Over the seeds that both have."""
    have = [{seed for seed, (_, run) in v.runs.items() if run.final} for v in (variant, base)]
    seeds = sorted(have[0] & have[1])
    if have[0] != have[1]:
        numbers = ", ".join(map(str, seeds)) or "none"
        note = f"{variant.label} and {base.label} do not have the same seeds: they are compared over {numbers}."
        mirrored = f"{base.label} and {variant.label} do not have the same seeds: they are compared over {numbers}."
        if note not in notes and mirrored not in notes:
            notes.append(note)
    return verdicts(variant.over(seeds), base.over(seeds))


def _row(verdict: Verdict) -> tuple[int, float, float, str]:
    return verdict.client, round(verdict.difference, 6), round(verdict.error, 6), verdict.word


def _variant_row(variant: Variant) -> Record:
    results = variant.results()
    accuracies = [[record["accuracy"] for record in run.final] for run in results]
    means = [statistics.fmean(values) for values in accuracies]
    timed = [run for run in results if len(run.seconds) >= run.done > 0]
    return {
        "label": variant.label,
        "method": variant.first.method,
        "runs": [index for index, _ in variant.runs.values()],
        "seeds": list(variant.runs),
        "complete": all(run.complete for _, run in variant.runs.values()),
        "accuracy": statistics.fmean(means) if means else None,
        "client_spread": statistics.fmean(map(statistics.pstdev, accuracies)) if means else None,
        "seed_spread": statistics.stdev(means) if len(means) > 1 else None,
        "up": _mean_total(results, "up_bytes"),
        "down": _mean_total(results, "down_bytes"),
        "seconds": statistics.fmean(sum(run.seconds.values()) for run in timed) if timed else None,
    }


def _mean_total(runs: Sequence[RunFiles], name: str) -> float | None:
    totals = [sum(r[name] for r in run.metrics) if run.metrics else (run.summary or {}).get(name) for run in runs]
    known = [total for total in totals if total is not None]
    return statistics.fmean(known) if known else None


def _headline(rows: Sequence[Record], reference: int | None) -> str:
    known = [row for row in rows if row["accuracy"] is not None]
    if not known:
        return "No run has a result yet."
    best = max(known, key=lambda row: row["accuracy"])
    seeds = len(best["seeds"])
    equal = [row["label"] for row in known if row["accuracy"] == best["accuracy"]]
    who = f"{', '.join(equal[:-1])} and {equal[-1]} share" if len(equal) > 1 else f"{best['label']} has"
    text = f"{who} the highest mean accuracy, {100 * best['accuracy']:.1f}%"
    text += f" over {seeds} seeds" if seeds > 1 else " (one seed)"
    if not all(row["complete"] for row in rows):
        text = f"Not every run has ended. So far {text}"
    alone = rows[reference]["accuracy"] if reference is not None else None
    if alone is None:
        return f"{text}. Without a Stand-Alone run nothing tells whether federation helped anybody."
    if best is rows[reference or 0]:
        return f"{text}: on average no federation beat training alone."
    text += f"; alone it is {100 * alone:.1f}%."
    if len(equal) > 1:
        return text
    return f"{text} It helped {best['helped']} of {best['compared']} clients and harmed {best['harmed']}."


def table_rows(rows: Sequence[Record]) -> Rows:
    """The comparison as a table of words, accuracies in percent."""
    heading = ["method", "seeds", "accuracy", "± clients", "± seeds", "beat Stand-Alone", "helped", "harmed"]
    table = [[*heading, "up", "down", "seconds"]]
    for row in rows:
        percents = [_number(row[name], 100, 2) for name in ("accuracy", "client_spread", "seed_spread")]
        counts = [f"{row['better']} of {row['compared']}" if row["compared"] else "-"]
        counts += [str(row[name]) if row["compared"] else "-" for name in ("helped", "harmed")]
        sent = ["-" if row[way] is None else size(row[way]) for way in ("up", "down")]
        table.append([row["label"], str(len(row["seeds"])), *percents, *counts, *sent, _number(row["seconds"], 1, 1)])
    return table


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"
