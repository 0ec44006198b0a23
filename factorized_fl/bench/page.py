"""The page of benchmark tables, made from result files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from factorized_fl.bench.differences import Gap, Results, control_entry, is_real, read_results
from factorized_fl.bench.findings import answer, failures, findings, which
from factorized_fl.bench.suites import Choice, Suite, choice_of
from factorized_fl.bench.words import counted, entry_title, in_points, table, titles
from factorized_fl.results.schema import KINDS

INTRO = """# Benchmarks

All methods on the same clients, images, batches and rounds. `ffl bench SUITE --jobs 2 --data DIR` runs or resumes a
suite, which is a scenario with its methods. Each run becomes a file under `results/bench/` with its commit, machine,
configuration and seed. `ffl bench --page docs/benchmarks.md` writes this page from these files, sentences included.

How to read it:

- **Accuracy** is the mean over clients and seeds in percent, on test images. *Recalibrated* and *plain* are two tests
  of the same run: with BatchNorm statistics that each client measures again on its training images, and without
  ([why](methods.md#recalibration)). Differences are between recalibrated tests unless said otherwise.
- **Differences** are in percentage points. `+1.2 ± 4.3` is a difference with half of its 95% interval, over test images
  and seeds ([how it is computed](verdict.md)).
- **Better** and **worse** are said only if a difference is significant at 5% after Holm's correction for all
  comparisons of its column. All else is not decided, which does not mean equal. One seed decides nothing: its interval
  is that of the test images only. The answer about Factorized-Peers corrects for its five comparisons in all
  scenarios, recalibrated and plain each for itself. So a comparison can be decided there and not in the longer column
  of a table.
- The **control** of a method is the same method while each client aggregates with itself alone. The difference from it
  is what the other clients add. Methods that train dense weights in the usual way share one control, Stand-Alone, and
  those that factorise all weights share another.
- **Learning rates**, and options in brackets beside them, were chosen for each method and each control on validation
  images of seed 1 (`ffl bench SUITE --tune`, `results/bench/rates/`), so each is compared at its best. A method with an
  oracle has the rate of the method without it. All other options have their defaults.
- An **oracle** uses knowledge that no federation has ([which](methods.md#oracles)), to show how much there is to gain.
- **MB** is what all clients send and receive in one run.
"""


def page(results: Path, suites: Sequence[Suite]) -> str:
    """Return the whole page in Markdown; it says which runs are missing."""
    found = [read_results(suite, results) for suite in suites]
    begun = [each for each in found if each.runs]
    parts = [INTRO]
    if begun:
        parts += [findings(begun), answer(found), which(begun), failures(begun), *map(_section, begun)]
    else:
        parts.append(answer(found))
    return "\n".join([*parts, _missing(found)])


def suite_section(suite: Suite, results: Path) -> str:
    """Return the section of one suite in Markdown."""
    found = read_results(suite, results)
    return _section(found) if found.runs else f"{suite.name}: no run is done.\n"


# -- the tables


def _section(results: Results) -> str:
    """Return the tables of a suite, best first: what a federation could run, then oracles and controls."""
    methods, oracles = results.methods, results.oracles
    controls = [entry for entry in results.runs if not is_real(entry) and entry not in oracles]
    controls.sort(key=results.mean, reverse=True)
    parts = [f"## {results.suite.name}\n", f"{results.suite.about} {_setup(results)}\n".lstrip()]
    if methods:
        columns = {
            "over Stand-Alone": results.over_alone(methods),
            "over its control": results.over_controls(methods),
            "Factorized-Peers over it": results.of_reference(methods),
        }
        parts.append(_rows(results, "method", methods, columns))
    if oracles:
        columns = {"over Stand-Alone": results.over_alone(oracles)}
        parts.append(
            "Oracles, which use knowledge that no federation has:\n\n" + _rows(results, "method", oracles, columns)
        )
    if controls:
        parts.append("Controls, in which each client aggregates with itself alone:\n\n" + _controls(results, controls))
    return "\n".join(parts)


def _short(commit: str) -> str:
    """Return the first digits of a commit, marked if the source tree had changes."""
    digits, dirty, _ = commit.partition("-dirty")
    return digits[:9] + dirty


def _setup(results: Results) -> str:
    """Return the scenario's sizes and where its runs were made."""
    first, records = results.records[0]["configuration"], results.records
    width = f" of width {first['width']:g}" if first["width"] != 1 else ""
    pixels = f"images of {first['image_size']} x {first['image_size']} pixels, " if first["image_size"] else ""
    sizes = (
        f"{first['clients']} clients, {first['rounds']} rounds of {counted(first['epochs'], 'epoch')}, batches of "
        f"{first['batch_size']}, {pixels}network `{first['model']}`{width}."
    )
    commits = ", ".join(sorted({_short(str(record["commit"])) for record in records}))
    devices = ", ".join(sorted({str(record["machine"].get("device", "unknown")) for record in records}))
    minutes = sum(record["seconds"] for record in records) / 60
    order = "Methods with fewer seeds than others come last." if len(set(map(len, results.runs.values()))) > 1 else ""
    return (
        f"{sizes} {counted(len(records), 'run')} on {devices} took {minutes:.0f} minutes, added up; commit {commits}. "
        f"{order}".rstrip()
    )


def _rows(results: Results, head: str, entries: Sequence[str], columns: Mapping[str, Mapping[str, Gap]]) -> str:
    rows = []
    for entry in entries:
        runs = list(results.runs[entry].values())
        sent = sum(run["summary"]["up_bytes"] + run["summary"]["down_bytes"] for run in runs) / len(runs) / 1e6
        gaps = [in_points(of.get(entry)) for of in columns.values()]
        name = entry_title(entry) + (" (did not activate)" if results.inactive(entry) else "")
        rows.append([name, *_scores(results, entry), *gaps, *_origin(results, entry), f"{sent:,.0f}"])
    return table((head, "recalibrated", "plain", *columns, "rate", "seeds", "MB"), rows)


def _controls(results: Results, entries: Sequence[str]) -> str:
    gaps, rows = results.over_alone(entries), []
    for entry in entries:
        of = [other for other in results.runs if is_real(other) and control_entry(other) == entry]
        scores = _scores(results, entry)
        rows.append([titles(of), *scores, in_points(gaps.get(entry)), *_origin(results, entry)])
    return table(("control of", "recalibrated", "plain", "over Stand-Alone", "rate", "seeds"), rows)


def _scores(results: Results, entry: str) -> list[str]:
    return [f"{100 * results.mean(entry, kind):.1f}" for kind in reversed(KINDS)]


def _origin(results: Results, entry: str) -> list[str]:
    runs = list(results.runs[entry].values())
    return [_chosen(runs[0]["configuration"]["lr"], choice_of(entry, results.choices)), str(len(runs))]


def _chosen(rate: float, choice: Choice) -> str:
    options = [f"{key}={value}" for key, value in choice.items() if key != "lr"]
    return f"{rate:g}" + (f" ({', '.join(options)})" if options else "")


# -- what is missing


def _missing(found: Sequence[Results]) -> str:
    lines = []
    for each in found:
        if not each.runs:
            lines.append(f"- {each.suite.name}: none of {len(each.missing)} runs is done.")
            continue
        name = each.suite.name
        if each.missing:
            count = sum(map(len, each.runs.values())) + len(each.missing)
            entries = list(dict.fromkeys(cell.entry for cell in each.missing))
            lines.append(f"- {name}: {len(each.missing)} of {count} runs are missing: {titles(entries)}.")
        if untuned := [entry for entry in each.suite.tuned_entries if entry in each.runs and entry not in each.choices]:
            lines.append(f"- {name}: not tuned to the end, so with the usual rate: {titles(untuned)}.")
        edge = [entry for entry in each.choices if entry in each.runs and _at_edge(each, entry)]
        if edge:
            lines.append(
                f"- {name}: the best rate is the smallest or largest that was tried, so another may be better: "
                f"{titles(edge)}."
            )
    return "## What is missing\n\n" + "\n".join(lines or ["- Nothing."]) + "\n"


def _at_edge(results: Results, entry: str) -> bool:
    tried = results.suite.rates(entry)
    return bool(tried) and results.choices[entry]["lr"] in (tried[0], tried[-1])
