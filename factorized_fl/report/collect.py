"""Collects run directories into one document: all content of the page, as values that JSON can hold.

Its size is bounded: matrices are rounded to 255 steps and, beyond a budget, only those of every n-th round are kept,
which the document notes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from factorized_fl import __version__
from factorized_fl.core.errors import UserError
from factorized_fl.core.ledger import BYTES_PER_NUMBER, formula_bytes
from factorized_fl.report.audited import audit_panel
from factorized_fl.report.classes import class_panel
from factorized_fl.report.command import command_of
from factorized_fl.report.comparison import comparison_document
from factorized_fl.report.exports import client_rows, downloads, verdict_rows
from factorized_fl.report.matrices import collect_matrices, to_base64
from factorized_fl.report.peers import peers_sentence
from factorized_fl.report.privacy import privacy_sentence
from factorized_fl.results.comparison import run_folder
from factorized_fl.results.control import BASELINE
from factorized_fl.results.effect import CONTROL, Effect, measure_effect
from factorized_fl.results.reading import Matrix, RunFiles, find_runs, read_run, recorded_rounds
from factorized_fl.results.references import (
    difference_lines,
    different_data,
    find_baseline,
    find_control,
    is_control,
    read_reference,
    reference_name,
)
from factorized_fl.results.schema import CONFIG, COORDINATOR, MIXING, TRACES, number
from factorized_fl.results.words import is_share, score_text

Document = dict[str, Any]

MATRIX_BUDGET = 2_000_000  # cells of all matrices of all runs
CONFUSION_BUDGET = 500_000
_NONE = 65_535  # marks a missing value of a curve


def collect(paths: Sequence[Path], baseline: Path | None = None, live: bool = False) -> Document:
    """Return the document of runs, compared with the Stand-Alone run `baseline`; only a `live` one may lack results."""
    if not paths:
        raise UserError("There is nothing to report on: name a run directory, or a folder of them.")
    found = find_runs(list(paths))
    given = read_reference(baseline) if baseline else None
    if len(found) > 1 and baseline:  # the baseline joins several runs as one more run
        found, given = find_runs([*found, baseline]), None
    runs = [read_run(path) for path in found]
    if not live and not any(run.final or (run.party and run.done) for run in runs):
        if all((run.path / "summary.json").exists() for run in runs):
            raise UserError(f"No client was tested in '{paths[0]}': run it again with a smaller dropout.")
        raise UserError(f"There is no result in '{paths[0]}' yet: wait for the end of the first round.")
    if complaint := different_data(runs):
        raise UserError(f"These runs cannot be compared, as {complaint}: report them apart.")
    # Beside other runs, controls are references. Stand-Alone as a control is known by the name of its folder only.
    controls = [r for r in runs if is_control(r) or r.path.resolve().name.endswith(run_folder(f"-{CONTROL}", r.seed))]
    others = [run for run in runs if run not in controls] or runs
    controls = controls if others is not runs else []
    runs = others
    sharing = sum(bool(recorded_rounds(run.path, MIXING) or recorded_rounds(run.path, TRACES)) for run in runs)
    described = [_run_document(run, [*runs, *controls], given, MATRIX_BUDGET // max(sharing, 1)) for run in runs]
    comparison = comparison_document(runs, controls) if len(runs) > 1 else None
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared"
    first = runs[0]
    about = first.party or first.config.get("preset") or first.config.get("dataset") or first.path.resolve().name
    return make_document(f"{title} · {about}", live, described, comparison)


def make_document(
    title: str, live: bool, runs: Sequence[Document] = (), comparison: Document | None = None
) -> Document:
    """Return the document of described runs and their comparison."""
    return {
        "format": 1,
        "version": __version__,
        "title": title,
        "live": live,
        "notes": comparison.pop("notes") if comparison else [],
        "runs": list(runs),
        "comparison": comparison,
    }


def _run_document(run: RunFiles, runs: Sequence[RunFiles], given: RunFiles | None, budget: int) -> Document:
    base = (None if given else find_control(run, runs)) or find_baseline(run, runs, given)
    effect = measure_effect([run], [base], reference_name(base)) if base else None
    found = effect.clients if effect else ()
    domains = list(dict.fromkeys(client["domain"] for client in run.clients))
    matrices = collect_matrices(run, budget)
    table = {**run.config, "options": run.options}
    again = str(run.path / CONFIG)  # the path as the user gave it, so that the command works in the same folder
    return {
        "name": run.path.resolve().name,
        "method": run.method,
        "title": run.title,
        "party": run.party,
        "seed": run.seed,
        "rounds": run.planned,
        "done": run.done,
        "complete": run.complete,
        "metric": run.metric,
        "share": is_share(run.metric),
        "headline": headline(run, effect),
        "baseline": _baseline_line(run, base) if base else None,
        "baseline_command": None if base or run.party else command_of(table, file=again, control=True),
        "domains": domains,
        "facts": _facts(run),
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
        "verdicts": [
            {**asdict(v), "client": v.client - 1, "difference": v.difference, "margin": v.margin} for v in found
        ],
        "curves": _curves(run),
        "traffic": _traffic(run),
        "peers": peers_sentence(run),
        "privacy": privacy_sentence(run),
        "matrices": matrices.pop("shown"),
        **matrices,
        "confusion": _confusion(run),
        "classes": class_panel(run),
        "audit": audit_panel(run),
        "config": [[str(k), _plain(v)] for k, v in run.config.items()],
        "options": [[str(k), _plain(v)] for k, v in run.options.items()],
        "environment": _flat(run.environment),
        "command": command_of(table, file=again) if run.config and not run.party else None,
        "downloads": downloads(
            f"{run.method}-seed{run.seed}",
            verdict_rows(run.clients, found, run.metric) if found else [],
            client_rows([run]),
        ),
        "notes": run.notes,  # last, because the entries above add to them
    }


def _facts(run: RunFiles) -> list[str]:
    """Return when the run was made, its data and its model, as far as they are known."""
    config, domains = run.config, len({client["domain"] for client in run.clients})
    data = str(config.get("preset") or config.get("dataset") or "unknown data")
    clients = f"{len(run.clients)} client{'s' if len(run.clients) != 1 else ''}"
    parts = [str(run.environment.get("date") or "")[:10], f"data: {data}, {clients}"]
    parts[-1] += f" of {domains} domains" if domains > 1 else ""
    if model := config.get("model"):
        width = config.get("width", 1.0)
        parts.append(f"model: {model}" + (f", width {width:g}" if isinstance(width, float) and width != 1 else ""))
    return [part for part in parts if part]


# -- the verdict


def _baseline_line(run: RunFiles, base: RunFiles) -> str:
    """Return the reference's name and how its training differed."""
    kind = "control" if is_control(base) else "Stand-Alone run"
    text = f"Reference: the {kind} '{base.path.resolve().name}', same clients, same test images, same seed."
    if not base.complete:
        text += f" It is in round {base.done} of {base.planned}."
    lines = difference_lines(run, base)
    return f"{text} It was trained differently: {', '.join(lines)}." if lines else text


def headline(run: RunFiles, effect: Effect | None) -> str:
    """Return the result of a run in one or two sentences."""
    if not run.final:
        if run.party == COORDINATOR and run.done:
            return f"{run.done} of {run.planned} rounds are done; no site reports its accuracy."
        return "No client has a result yet."
    mean = score_text(run.metric, sum(record["accuracy"] for record in run.final) / len(run.final), 1)
    result = f"{mean} {run.metric}"
    so_far = "" if run.complete else f" so far (round {run.done} of {run.planned})"
    if is_control(run):
        return f"The control: {result} on average{so_far}, every client without the others."
    if run.method == BASELINE:
        return f"Every client alone: {result} on average{so_far}. A federation has to beat this."
    if run.party == COORDINATOR:
        sites = f"{len(run.final)} of {len(run.clients)} sites"
        return f"{result} on average{so_far}, reported by {sites}. Each site can compare this with training alone."
    if effect is None:
        return f"{result} on average{so_far}. Run the control to see whether federation helped."
    where = f"{run.party}: {result}{so_far}" if run.party else f"{result} on average{so_far}"
    return f"{where}, {effect.sentence}"


# -- curves and traffic


def _curves(run: RunFiles) -> Document:
    """Return the score and the loss of every client after every round, and the bytes and seconds of every round."""
    rounds, count = run.done, len(run.clients)
    scores, losses = np.full((count, rounds), np.nan), np.full((count, rounds), np.nan)
    up, down = [0] * rounds, [0] * rounds
    for record in run.metrics:
        at = record["round"] - 1
        up[at] += record["up_bytes"]
        down[at] += record["down_bytes"]
        if record["accuracy"] is not None:
            scores[record["client"], at] = record["accuracy"]
            losses[record["client"], at] = np.nan if record.get("loss") is None else record["loss"]
    seconds = [run.seconds.get(at) for at in range(1, rounds + 1)]
    known = scores[np.isfinite(scores)]
    low, high = 0.0, (_NONE - 1) / 10_000  # shares are kept in whole hundredths of a percent
    if known.size and not is_share(run.metric):
        low, high = float(known.min()), float(known.max())
    curves = {"score": _steps(scores, low, high), "up": up, "down": down, "seconds": seconds}
    if not np.isfinite(losses).any():
        return curves
    return {**curves, "loss": _steps(losses, 0.0, float(losses[np.isfinite(losses)].max()))}


def _steps(values: Matrix, low: float, high: float) -> Document:
    """Return values as whole steps between two limits, with the limits; 65,535 marks a missing value."""
    finite = np.isfinite(values)
    shares = (np.where(finite, values, low) - low) / (high - low or 1.0)
    steps = np.where(finite, np.round(shares * (_NONE - 1)), _NONE)
    return {"steps": to_base64(steps.astype("<u2")), "low": low, "unit": (high - low) / (_NONE - 1)}


def _client_traffic(run: RunFiles) -> list[list[int]]:
    totals = [[0, 0] for _ in run.clients]
    for record in run.metrics:
        totals[record["client"]][0] += record["up_bytes"]
        totals[record["client"]][1] += record["down_bytes"]
    return totals


def _traffic(run: RunFiles) -> Document:
    """Return measured bytes by role and direction, and the bytes of the paper's formula."""
    metrics, summary = run.metrics, run.summary
    totals = {"up": int(run.total("up_bytes") or 0), "down": int(run.total("down_bytes") or 0)}
    formulas = formula_bytes((r["round"], r["up_formula"], r["down_formula"]) for r in metrics)
    if not metrics and summary:
        formulas["formula_a_bytes"] = int(summary["formula_a_bytes"] or 0)
        formulas["formula_b_bytes"] = int(summary["formula_b_bytes"] or 0)
    ways = {
        "formula_up": BYTES_PER_NUMBER * sum(r["up_formula"] for r in metrics) if metrics else None,
        "formula_down": BYTES_PER_NUMBER * sum(r["down_formula"] for r in metrics) if metrics else None,
    }
    roles: dict[str, dict[str, int]] = {}
    for record in metrics:
        for way, counts in (("up", record["up_roles"]), ("down", record["down_roles"])):
            for role, count in counts.items():
                roles.setdefault(role, {"up": 0, "down": 0})[way] += count
    if roles:
        roles["headers"] = {way: totals[way] - sum(role[way] for role in roles.values()) for way in ("up", "down")}
    elif sum(totals.values()) and metrics:
        run.notes.append("metrics.jsonl does not say which role the bytes belong to: the run is of an older version.")
    return {**totals, **formulas, **ways, "roles": [{"role": role, **of_role} for role, of_role in roles.items()]}


# -- confusion, configuration, environment


def _confusion(run: RunFiles) -> list[list[int] | None]:
    """Return every client's confusion matrix row by row: true class by predicted class."""
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
