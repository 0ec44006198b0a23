"""The tables of docs/mini.md, from results/mini/."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import Record
from studies.mini.collect import RESULTS, ROOT, read_results

PAGE = ROOT / "docs" / "mini.md"
BEGIN, END = "<!-- written by `python -m studies.mini show` -->\n", "<!-- end -->"
_ORACLES = {"groups": "in the true groups"}


def title_of(row: str) -> str:
    """Return the name of a row of the grid for people."""
    method, *changes = row.split("+")
    words = ["each client alone" if change == "control" else _ORACLES[change] for change in changes]
    return ", ".join([METHODS[method].card.title, *words])


def tables() -> str:
    """Return all tables for which there are results."""
    grid, tuning = read_results("grid"), read_results("tuning")
    options = ["", *_options(read_results("options"))] if (RESULTS / "options.json").exists() else []
    return "\n".join([*_answers(grid), "", *_scores(grid), "", *_rates(tuning), *options]) + "\n"


def _answers(grid: Record) -> Iterable[str]:
    yield "| question | comparison | seeds | points, 95% interval | helped | harmed | plain, points |"
    yield "|---|---|---|---|---|---|---|"
    for question, found in grid["questions"].items():
        for answer in found:
            pair = f"{title_of(answer['row'])}, over {title_of(answer['over'])}"
            one = len(answer["seeds"]) == 1
            counts = ("-", "-") if one else (answer["helped"], answer["harmed"])
            seeds, plain = ", ".join(map(str, answer["seeds"])), f"{100 * answer['plain']:+.1f}"
            yield f"| {question} | {pair} | {seeds} | {_points(answer)} | {counts[0]} | {counts[1]} | {plain} |"
            question = ""


def _scores(grid: Record) -> Iterable[str]:
    yield "| method | lr | seeds | recalibrated | plain | over its control | helped | harmed | over Stand-Alone | MB |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    rows: dict[str, list[Record]] = {}
    for run in grid["runs"]:
        rows.setdefault(run["row"], []).append(run)
    ordered = sorted(rows.items(), key=lambda item: -_mean_of(item[1], "recalibrated", "test"))
    for row, runs in ordered:
        seeds = ", ".join(str(run["seed"]) for run in runs)
        cells = " | ".join(f"{100 * _mean_of(runs, kind, 'test'):.1f}" for kind in ("recalibrated", "plain"))
        sent = fmean(sum(run["bytes"].values()) for run in runs) / 1e6
        rate = runs[0]["settings"].get("lr", "")
        control, alone = (grid.get("gains", {}).get(row, {}).get(name) for name in ("control", "stand-alone"))
        counts = (control["helped"], control["harmed"]) if control and control["seeds"] > 1 else ("-", "-")
        gains = f"{_points(control)} | {counts[0]} | {counts[1]} | {_points(alone)}"
        yield f"| {title_of(row)} | {rate} | {seeds} | {cells} | {gains} | {sent:,.1f} |"


def _points(gain: Record | None) -> str:
    """Return a mean difference in points with its interval."""
    if gain is None:
        return "-"
    return f"{100 * gain['mean']:+.1f} ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})"


def _mean_of(runs: Sequence[Mapping[str, Any]], kind: str, part: str) -> float:
    return fmean(run["scores"][kind][part] for run in runs)


def _rates(tuning: Record) -> Iterable[str]:
    """Yield the accuracy on validation images for each learning rate, and for options that were tried."""
    tried: dict[tuple[str, str], dict[float, float]] = {}
    for run in tuning["runs"]:
        own = {
            k: v
            for k, v in run["settings"].items()
            if k not in ("lr", "score", "recalibrate", "head", "momentum", "warm_up", "profile")
        }
        options = ", ".join(f"{name} = {value}" for name, value in own.items())
        tried.setdefault((run["row"], options), {})[run["settings"].get("lr", 0.001)] = run["validation"]
    rates = sorted({rate for found in tried.values() for rate in found})
    yield f"| method | options | {' | '.join(f'lr {rate:g}' for rate in rates)} |"
    yield "|---|---|" + "---|" * len(rates)
    for (row, options), found in tried.items():
        cells = " | ".join(f"{100 * found[rate]:.1f}" if rate in found else "-" for rate in rates)
        yield f"| {title_of(row)} | {options or 'defaults'} | {cells} |"


def _options(options: Record) -> Iterable[str]:
    """Yield the accuracy on validation images for each choice of Factorized-FL's options, the best first."""
    yield "| options of Factorized-FL | seeds | validation | over the defaults | p, by Holm | test |"
    yield "|---|---|---|---|---|---|"
    for choice in options["choices"]:
        own = ", ".join(f"{name} = {value}" for name, value in choice["settings"].items())
        seeds = ", ".join(map(str, choice["seeds"]))
        over = f"{_points(choice)} | {choice['p']:.2f}" if "p" in choice else "- | -"
        means = [f"{100 * fmean(choice[part]):.1f}" for part in ("validation", "test")]
        yield f"| {own or 'defaults'} | {seeds} | {means[0]} | {over} | {means[1]} |"


def write_page() -> None:
    """Write the tables into docs/mini.md."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    PAGE.write_text(re.sub(pattern, lambda _: BEGIN + "\n" + tables() + "\n" + END, text, flags=re.S), encoding="utf-8")
