"""From run directories to one plain document: everything the page shows, as values that JSON can hold.

What grows with clients and rounds is bounded: matrices are rounded to 255 steps and, past a budget, kept of every n-th
round only, and the document says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from factorized_fl import __version__
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import BYTES_PER_NUMBER, formula_bytes
from factorized_fl.report.command import command_of
from factorized_fl.report.comparison import (
    check_baseline,
    compare_runs,
    difference_lines,
    different_data,
    differing,
    read_baseline,
)
from factorized_fl.report.exports import client_rows, downloads, verdict_rows
from factorized_fl.report.matrices import collect_matrices, to_base64
from factorized_fl.results.reading import RunFiles, find_runs, is_run, number, read_run
from factorized_fl.results.verdict import Verdict, verdicts
from factorized_fl.silo.plan import ALONE, COORDINATOR

Document = dict[str, Any]

MATRIX_BUDGET = 2_000_000  # cells of all matrices of all runs
CONFUSION_BUDGET = 500_000
_NONE = 65_535  # in accuracies, which are whole hundredths of a percent


def collect(paths: Sequence[Path], baseline: Path | None = None, live: bool = False) -> Document:
    """The document of one run or several; `baseline` is a Stand-Alone run to judge them by."""
    found = find_runs(list(paths))
    others = [read_baseline(baseline)] if baseline else []
    if len(found) > 1 and baseline:  # among several runs it is simply one more
        found, others = find_runs([*found, baseline]), []
    runs = [read_run(path) for path in found]
    if not live and not any(run.final or (run.party and run.done) for run in runs):
        if all((run.path / "summary.json").exists() for run in runs):
            raise UserError(f"Nobody was tested in '{paths[0]}', so there is nothing to show: see its dropout.")
        raise UserError(f"There is no result in '{paths[0]}' yet: wait for the end of the first round.")
    if complaint := different_data(runs):
        raise UserError(f"These runs cannot be compared, as {complaint}: report them apart.")
    sharing = sum(bool(run.rounds_of("mixing") or run.rounds_of("traces")) for run in runs)
    described = [_describe(run, runs, others, MATRIX_BUDGET // max(sharing, 1)) for run in runs]
    comparison = compare_runs(runs) if len(runs) > 1 else None
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared"
    preset = runs[0].party or runs[0].config.get("preset") or runs[0].config.get("dataset")
    preset = str(preset or runs[0].path.resolve().name)
    return {
        "format": 1,
        "version": __version__,
        "title": f"{title} · {preset}",
        "live": live,
        "notes": comparison.pop("notes") if comparison else [],
        "runs": described,
        "comparison": comparison,
    }


def _describe(run: RunFiles, runs: Sequence[RunFiles], given: Sequence[RunFiles], budget: int) -> Document:
    base, how = _find_baseline(run, runs, given)
    found = _judge(run, base) if base else []
    domains = list(dict.fromkeys(client["domain"] for client in run.clients))
    matrices = collect_matrices(run, budget)
    table = {**run.config, "options": run.options}
    again = str(run.path / "config.toml")  # as the run was named, so that it is found from the same folder
    return {
        "name": run.path.resolve().name,
        "method": run.method,
        "title": run.title,
        "party": run.party,
        "seed": run.seed,
        "rounds": run.planned,
        "done": run.done,
        "complete": run.complete,
        "headline": headline(run, base, found),
        "baseline": how,
        "baseline_command": None if base or run.party else command_of(table, "stand-alone", again),
        "domains": domains,
        "clients": [
            {
                "name": client["name"],
                "domain": domains.index(client["domain"]),
                "classes": client["classes"],
                "test": client["test"],
                "traffic": traffic,
            }
            for client, traffic in zip(run.clients, _client_traffic(run), strict=True)
        ],
        "final": [
            {name: record[name] for name in ("client", "accuracy", "correct", "total", "round")} for record in run.final
        ],
        "verdicts": [{**asdict(v), "difference": v.difference, "word": v.word} for v in found],
        "curves": _curves(run),
        "traffic": _traffic(run),
        "matrices": matrices.pop("shown"),
        **matrices,
        "confusion": _confusion(run),
        "config": [[str(k), _plain(v)] for k, v in run.config.items()],
        "options": [[str(k), _plain(v)] for k, v in run.options.items()],
        "environment": _flat(run.environment),
        "command": command_of(table, file=again) if run.config and not run.party else None,
        "downloads": downloads(
            f"{run.method}-seed{run.seed}", verdict_rows(run.clients, found) if found else [], client_rows([run])
        ),
        "notes": run.notes,  # last: reading matrices and the rest adds to them
    }


# -- the verdict


def _find_baseline(
    run: RunFiles, runs: Sequence[RunFiles], given: Sequence[RunFiles]
) -> tuple[RunFiles | None, str | None]:
    """A Stand-Alone run of the same clients: the one named, or a complete one among those reported or beside this."""
    if run.method == "stand-alone":
        return None, None
    if given:
        check_baseline(run, given[0])
        return given[0], _how(run, given[0])
    found = [other for other in runs if other.method == "stand-alone" and other.seed == run.seed]
    beside = run.path.resolve().parent / (ALONE if run.party else f"stand-alone-seed{run.seed}")
    if not found and is_run(beside):
        found = [read_run(beside)]
    fitting = [other for other in found if other.complete and not different_data([run, other])]
    fitting.sort(key=lambda other: len(differing(run, other)))
    return (fitting[0], _how(run, fitting[0])) if fitting else (None, None)


def _how(run: RunFiles, base: RunFiles) -> str:
    """Which run it was, and how it was trained differently."""
    text = f"Alone: the Stand-Alone run '{base.path.resolve().name}', same clients, same test images, same seed."
    if not base.complete:
        text += f" It is in round {base.done} of {base.planned}."
    lines = difference_lines(run, base)
    return f"{text} It was trained differently: {', '.join(lines)}." if lines else text


def _judge(run: RunFiles, base: RunFiles) -> list[Verdict]:
    return verdicts([{"clients": run.final}], [{"clients": base.final}])


def headline(run: RunFiles, base: RunFiles | None, found: Sequence[Verdict]) -> str:
    """The verdict in words."""
    if not run.final:
        if run.party == COORDINATOR and run.done:
            return f"{run.done} of {run.planned} rounds are done; no site has chosen to report how well it goes."
        return "No client has a result yet."
    mean = sum(record["accuracy"] for record in run.final) / len(run.final)
    so_far = "" if run.complete else f" so far (round {run.done} of {run.planned})"
    if run.method == "stand-alone":
        return f"Everybody alone: {_percent(mean)} right on average{so_far}. This is what a federation has to beat."
    if run.party == COORDINATOR:
        who = f"{len(run.final)} of {len(run.clients)} sites report"
        return f"{_percent(mean)} right on average{so_far}, as {who}. Whether that beats training alone, they know."
    if base is None or not found:
        return (
            f"{_percent(mean)} right on average{so_far}. Whether that is better than alone, no Stand-Alone run tells."
        )
    alone = sum(verdict.alone for verdict in found) / len(found)
    if run.party:
        words = {"helped": "Federation helped", "harmed": "Federation harmed"}
        word = words.get(found[0].word, "These tests show no difference for")
        return f"{word} {run.party}{so_far}: {_percent(mean)} right, alone {_percent(alone)}."
    helped, harmed = (sum(verdict.word == word for verdict in found) for word in ("helped", "harmed"))
    rest = len(found) - helped - harmed
    tail = f"; for {'the other ' if helped or harmed else ''}{rest} these tests show no difference" if rest else ""
    return (
        f"Federation helped {helped} of {len(found)} clients and harmed {harmed}{so_far}{tail}. "
        f"On average {_percent(mean)} right, alone {_percent(alone)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


# -- curves and traffic


def _curves(run: RunFiles) -> Document:
    """Accuracy of every client after every round; bytes and seconds of every round."""
    rounds, count = run.done, len(run.clients)
    accuracy = np.full((count, rounds), _NONE, dtype="<u2")
    up, down = [0] * rounds, [0] * rounds
    for record in run.metrics:
        at = record["round"] - 1
        up[at] += record["up_bytes"]
        down[at] += record["down_bytes"]
        if record["accuracy"] is not None:
            accuracy[record["client"], at] = round(10_000 * record["accuracy"])
    seconds = [run.seconds.get(round) for round in range(1, rounds + 1)]
    return {"accuracy": to_base64(accuracy), "up": up, "down": down, "seconds": seconds}


def _client_traffic(run: RunFiles) -> list[list[int]]:
    totals = [[0, 0] for _ in run.clients]
    for record in run.metrics:
        totals[record["client"]][0] += record["up_bytes"]
        totals[record["client"]][1] += record["down_bytes"]
    return totals


def _traffic(run: RunFiles) -> Document:
    """Measured bytes by role and direction; the paper's formula beside them."""
    totals = {way: sum(record[f"{way}_bytes"] for record in run.metrics) for way in ("up", "down")}
    formulas = formula_bytes((r["round"], r["up_formula"], r["down_formula"]) for r in run.metrics)
    if not run.metrics and run.summary:
        totals = {way: int(run.summary[f"{way}_bytes"] or 0) for way in ("up", "down")}
        formulas = {name: int(run.summary[name] or 0) for name in formulas}
    ways = {
        f"formula_{way}": BYTES_PER_NUMBER * sum(r[f"{way}_formula"] for r in run.metrics) if run.metrics else None
        for way in ("up", "down")
    }
    roles: dict[str, dict[str, int]] = {}
    for record in run.metrics:
        for way in ("up", "down"):
            for role, count in record[f"{way}_roles"].items():
                roles.setdefault(role, {"up": 0, "down": 0})[way] += count
    if roles:
        known = {way: sum(counts[way] for counts in roles.values()) for way in ("up", "down")}
        roles["headers"] = {way: totals[way] - known[way] for way in ("up", "down")}
    elif sum(totals.values()) and run.metrics:
        run.notes.append("metrics.jsonl does not say which role the bytes belong to: the run is of an older version.")
    return {**totals, **formulas, **ways, "roles": [{"role": role, **counts} for role, counts in roles.items()]}


# -- confusion, configuration, environment


def _confusion(run: RunFiles) -> list[list[int] | None]:
    """Counts of every client, row by row: true class by predicted class."""
    found: list[list[int] | None] = []
    cells = 0
    for client, counts in zip(run.clients, run.confusion, strict=False):
        try:
            table = np.array(counts, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            table = np.zeros(0, dtype=np.int64)
        size = len(client["classes"])
        cells += table.size
        found.append(table.flatten().tolist() if size and table.shape == (size, size) else None)
    if cells > CONFUSION_BUDGET:
        run.notes.append("There are too many classes to show the confusion matrices here: they are in analysis.json.")
        return []
    return found


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flat(values: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += [[str(inner), _plain(v)] for inner, v in value.items()]
        elif value is not None:
            rows.append([str(name), _plain(value) if number(value) is None else f"{value:g}"])
    return rows
