"""Runs on mini-domains that average more often, or test averaged weights, with and without matched classes.

python -m studies.alignment_variants run --jobs 2 --data DIR    runs or resumes; what is finished is not run again
python -m studies.alignment_variants list                       prints the names of the missing runs
python -m studies.alignment_variants show                       writes the table in docs/classes.md

Each variant trains for as many steps as the suite, at the learning rate that was chosen for the method. Results are
kept beside those of the suite, as results/bench/mini-domains/METHOD_SETTINGS.lrRATE.seedN.json.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorized_fl.bench.cells import Place, run_cells
from factorized_fl.bench.differences import Results, control_entry, judge, read_results
from factorized_fl.bench.rates import read_rates
from factorized_fl.bench.suites import Cell, Choices, Suite, cells_of, choice_of, read_suites
from factorized_fl.bench.words import entry_title, in_points
from factorized_fl.core.files import write_atomically
from factorized_fl.results.entries import Entry, parse_entry
from factorized_fl.simulate.side_by_side import threads_for
from studies.alignment_runs import METHODS, PAGE, RESULTS, matches_of, put_between

Settings = dict[str, Any]
SUITE = "mini-domains"
FIRST = "20 rounds, 5 epochs"  # as the suite runs
VARIANTS: dict[str, Settings] = {
    FIRST: {},
    "50 rounds, 2 epochs": {"rounds": 50, "epochs": 2},
    "100 rounds, 1 epoch": {"rounds": 100, "epochs": 1},
    "`ema = 0.9`": {"ema": 0.9},
}
REFERENCES = ("stand-alone", "factorized-fedavg:control=true")  # the controls of METHODS
WAYS: tuple[Settings, ...] = ({}, {"align": "statistics"})
BEGIN = "<!-- begin: written by studies.alignment_variants -->"


def entry_of(method: str, way: Settings, variant: str) -> str:
    """The entry of a run."""
    base = parse_entry(method)
    return Entry(base.method, {**base.own, **VARIANTS[variant], **way}).name


def rows() -> list[tuple[str, Settings, str]]:
    """Each row of the table: a method or a reference, its way of matching, and the variant."""
    pairs: list[tuple[str, Settings]] = [(reference, {}) for reference in REFERENCES] + list(
        itertools.product(METHODS, WAYS)
    )
    return [(method, way, variant) for method, way in pairs for variant in VARIANTS]


def suite_of() -> Suite:
    """The suite with other entries: references, and each method without and with matched classes, in each variant."""
    return replace(read_suites()[SUITE], entries=tuple(itertools.starmap(entry_of, rows())))


def choices_of(suite: Suite, results: Path) -> Choices:
    """The rate of each entry: the one that was chosen for its method."""
    known = read_rates(suite, results)
    return {entry_of(*row): choice_of(row[0], known) for row in rows()}


def cells(results: Path) -> list[Cell]:
    """All runs, ordered by method."""
    suite, order = suite_of(), [parse_entry(method).method for method in (*REFERENCES, *METHODS)]
    found = cells_of(suite, choices_of(suite, results))
    return sorted(found, key=lambda cell: order.index(cell.config.method))


def table_of(results: Results) -> str:
    """The table of all finished runs.

    A change is from FIRST with the same matching; the difference from the control is from each client alone with the
    same training. Each of the two columns is one family.
    """
    changes, gains = {}, {}
    for method, way, variant in rows():
        entry = entry_of(method, way, variant)
        if variant != FIRST:
            changes[entry] = results.difference(entry, entry_of(method, way, FIRST))
        if method in METHODS:
            gains[entry] = results.difference(entry, entry_of(control_entry(method), {}, variant))
    judged = judge(changes), judge(gains)
    lines = [
        "| method | `align` | training | accuracy | change | over its control | found / right | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, way, variant in rows():
        entry = entry_of(method, way, variant)
        if runs := results.runs.get(entry):
            line = [entry_title(method), way.get("align", "off"), variant, f"{100 * results.mean(entry):.1f}"]
            line += [in_points(of[entry]) if entry in of else "" for of in judged]
            lines.append(f"| {' | '.join([*line, matches_of(runs.values()), ', '.join(map(str, sorted(runs)))])} |")
    return "\n".join(lines)


def with_variants(page: str, results: Path) -> str:
    """The page with a new table between its two marks."""
    suite = suite_of()
    return put_between(page, BEGIN, table_of(read_results(suite, results, choices_of(suite, results))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--data", type=Path)
    run.add_argument("--work", type=Path, default=Path("runs/bench"))
    run.add_argument("--device", default="cpu")
    run.add_argument("--method", choices=(*REFERENCES, *METHODS))
    for command in (run, commands.add_parser("list"), commands.add_parser("show")):
        command.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if given.command == "list":
        print("\n".join(cell.name for cell in cells(given.results) if not cell.path(given.results).exists()))
    elif given.command == "show":
        write_atomically(PAGE, with_variants(PAGE.read_text("utf-8"), given.results).encode())
    else:
        place = Place(given.results, given.work, given.data, given.device, threads_for(given.jobs))
        wanted = [
            cell for cell in cells(given.results) if (given.method or cell.config.method).startswith(cell.config.method)
        ]
        for cell, state in run_cells(wanted, place, given.jobs):
            print(f"{cell.suite}/{cell.name}: {state}", flush=True)


if __name__ == "__main__":
    main()
