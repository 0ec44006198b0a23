"""The page of benchmark tables, made from result files alone."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from factorized_fl.bench.cells import Record, read_cell, tests_of
from factorized_fl.results.effect import Effect, effect_between

REFERENCE, ALONE = "factorized-peers", "stand-alone"
Kind = tuple[bool, bool]  # recalibrated, control


@dataclass(frozen=True)
class Row:
    """One entry of a table: its accuracy, and the differences of Stand-Alone and of the reference from it."""

    entry: str
    kind: Kind
    accuracy: float
    seeds: int
    megabytes: float
    over_alone: Effect | None
    under_reference: Effect | None  # how much better the reference is


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return the rows of one suite, best first; differences are between runs that recalibrate alike."""
    groups: dict[tuple[str, Kind], dict[int, Record]] = {}
    for record in records:
        config = record["configuration"]
        kind = (bool(config["recalibrate"]), bool(config["control"]))
        groups.setdefault((record["entry"], kind), {})[record["seed"]] = record
    rows = []
    for (entry, kind), runs in groups.items():
        plain = (kind[0], False)
        means = [statistics.fmean(one["accuracy"] for one in tests_of(run).final) for run in runs.values()]
        traffic = [run["summary"]["up_bytes"] + run["summary"]["down_bytes"] for run in runs.values()]
        rows.append(
            Row(
                entry,
                kind,
                statistics.fmean(means),
                len(runs),
                statistics.fmean(traffic) / 1e6,
                _difference(runs, groups.get((ALONE, plain), {})),
                _difference(groups.get((REFERENCE, plain), {}), runs),
            )
        )
    return sorted(rows, key=lambda row: -row.accuracy)


def _difference(ours: Mapping[int, Record], theirs: Mapping[int, Record]) -> Effect | None:
    """Return the mean difference of two entries over the seeds that both have; None for one entry or no such seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if any(ours[seed] is theirs[seed] for seed in seeds):
        return None
    return effect_between(
        [tests_of(ours[seed]) for seed in seeds], [tests_of(theirs[seed]) for seed in seeds], "the other run"
    )


def _points(effect: Effect | None) -> str:
    if effect is None:
        return "-"
    return f"{100 * effect.mean:+.2f} [{100 * effect.low:+.2f}, {100 * effect.high:+.2f}]"


def _called(row: Row) -> str:
    words = [word for word, on in zip(("recalibrated", "control"), row.kind, strict=True) if on]
    return f"{row.entry} ({', '.join(words)})" if words else row.entry


def table(name: str, records: Sequence[Record]) -> str:
    """Return the section of one suite in Markdown."""
    rows = rows_of(records)
    heads = ("run", "seeds", "accuracy", "over Stand-Alone", "Factorized-Peers is better by", "MB")
    head = f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    lines = [
        f"| {_called(row)} | {row.seeds} | {100 * row.accuracy:.2f} | {_points(row.over_alone)} "
        f"| {_points(row.under_reference)} | {row.megabytes:,.1f} |\n"
        for row in rows
    ]
    commits = ", ".join(sorted({str(record["commit"])[:9] for record in records}))
    return f"## {name}\n\n{head}{''.join(lines)}\n{_summary(rows)}\nCommits: {commits}.\n"


def _summary(rows: Sequence[Row]) -> str:
    """Return in sentences what to use and what did not work."""
    real = [row for row in rows if "oracle" not in row.entry and not row.kind[1]]
    sentences = []
    if real:
        sentences.append(f"Best without an oracle: {_called(real[0])}.")
    better = [_called(row) for row in real if row.under_reference and row.under_reference.low > 0]
    worse = [_called(row) for row in real if row.under_reference and row.under_reference.high < 0]
    sentences.append(f"Factorized-Peers is better than: {', '.join(better) or 'no other run'}.")
    sentences.append(f"Better than Factorized-Peers: {', '.join(worse) or 'no other run'}.")
    failed = [_called(row) for row in real if row.over_alone and row.over_alone.high < 0]
    sentences.append(f"Did not work, as it is below Stand-Alone: {', '.join(failed) or 'nothing'}.")
    return "\n".join(f"- {sentence}" for sentence in sentences) + "\n"


def page(results: Path, suites: Sequence[str]) -> str:
    """Return the whole page in Markdown; suites without any result are named at the end."""
    found = {name: [read_cell(path) for path in sorted((results / name).glob("*.json"))] for name in suites}
    sections = [table(name, records) for name, records in found.items() if records]
    intro = (
        "# Benchmarks\n\n`ffl bench SUITE --jobs 2` runs or resumes a suite: each run becomes a file under "
        "`results/bench/` with its commit,\nmachine, options and seed. `ffl bench --page docs/benchmarks.md` writes "
        "this page from these files. Accuracies are means over "
        "clients and seeds in percent.\nDifferences are in percentage points with 95% intervals over test images and "
        "seeds, between runs that recalibrate alike\n([verdict.md](verdict.md)). Runs with `oracle` use knowledge that "
        "no federation has ([methods.md](methods.md#oracles)).\n\n"
    )
    missing = [name for name, records in found.items() if not records]
    end = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    return intro + "\n".join(sections) + end
