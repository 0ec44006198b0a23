"""The gain from sharing classifiers among matched classes, with every `align`: the last table of docs/classes.md.

python -m studies.alignment_runs run PRESET --jobs 2 --data DIR    runs or resumes; what is finished is not run again
python -m studies.alignment_runs show                              writes the table

PRESET is a suite of `ffl bench`. Its settings, learning rates and runs without matching are used. Results are kept
beside those of the suite, as results/bench/PRESET/METHOD_align=WAY.lrRATE.seedN.json.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from factorized_fl.bench.cells import Place, run_cells
from factorized_fl.bench.differences import Results, judge, read_results
from factorized_fl.bench.rates import read_rates
from factorized_fl.bench.suites import Suite, cells_of, read_suites
from factorized_fl.bench.words import in_points
from factorized_fl.core.files import write_atomically
from factorized_fl.results.entries import parse_entry
from factorized_fl.results.rundir import Record
from factorized_fl.simulate.side_by_side import threads_for

PRESETS = ("mini-domains", "mini-domains-dirichlet", "mini-domains-30", "mini-pacs")
METHODS = ("fedavg", "factorized-peers")
WAYS = ("statistics", "classifier", "true")
RESULTS, PAGE = Path("results/bench"), Path("docs/classes.md")
BEGIN, END = "<!-- begin: written by studies.alignment_runs -->", "<!-- end -->"


def suite_of(preset: str) -> Suite:
    """The suite of a preset with other entries: each method without matching, and with each way of matching."""
    entries = [entry for method in METHODS for entry in (method, *(f"{method}:align={way}" for way in WAYS))]
    return replace(read_suites()[preset], entries=tuple(parse_entry(entry).name for entry in entries))


def found_and_right(counts: Sequence[Record]) -> str:
    """The share of all pairs of equal classes that were matched, and the share of matches that are right."""
    if not counts:
        return ""
    same, matched, right = (sum(each[what] for each in counts) for what in ("same", "matched", "right"))
    return f"{right / same:.0%} / {f'{right / matched:.0%}' if matched else '-'}"


def matches_of(runs: Iterable[Record]) -> str:
    """`found_and_right` of all runs that match classes."""
    return found_and_right([run["summary"]["matches"] for run in runs if "matches" in run["summary"]])


def run_lines(results: Results) -> list[str]:
    """The rows of one preset; changes are judged as one family."""
    lines, matched = [], [entry for entry in results.suite.entries if "align" in parse_entry(entry).own]
    gaps = judge({entry: results.difference(entry, parse_entry(entry).method) for entry in matched})
    for entry in filter(results.runs.__contains__, results.suite.entries):
        parsed = parse_entry(entry)
        change = in_points(gaps.get(entry)) if entry in gaps else ""
        cells = [f"`{results.suite.name}`", parsed.method, str(parsed.own.get("align", "off")).lower()]
        cells += [f"{100 * results.mean(entry):.1f}", change, matches_of(results.runs[entry].values())]
        lines.append(f"| {' | '.join([*cells, ', '.join(map(str, sorted(results.runs[entry])))])} |")
    return lines if gaps else []


def table_of(results: Path) -> str:
    """The table of all presets with a run that matches classes."""
    lines = [line for preset in PRESETS for line in run_lines(read_results(suite_of(preset), results))]
    heads = [
        "| preset | method | `align` | accuracy | change | found / right | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*heads, *lines] if lines else ["No run is finished."])


def with_table(page: str, results: Path) -> str:
    """The page with a new table between its two marks."""
    return put_between(page, BEGIN, table_of(results))


def put_between(page: str, begin: str, table: str) -> str:
    """The page with a table between the mark `begin` and the next `END`; raise ValueError if a mark is missing."""
    before, rest = page.split(begin)
    after = rest[rest.index(END) :]
    return f"{before}{begin}\n{table}\n{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("preset", choices=PRESETS)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--data", type=Path)
    run.add_argument("--work", type=Path, default=Path("runs/bench"))
    run.add_argument("--device", default="cpu")
    for command in (run, commands.add_parser("show")):
        command.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if given.command == "show":
        write_atomically(PAGE, with_table(PAGE.read_text("utf-8"), given.results).encode())
        return
    suite = suite_of(given.preset)
    place = Place(given.results, given.work, given.data, given.device, threads_for(given.jobs))
    for cell, state in run_cells(cells_of(suite, read_rates(suite, given.results)), place, given.jobs):
        print(f"{suite.name}/{cell.name}: {state}", flush=True)


if __name__ == "__main__":
    main()
