"""The page of benchmark tables, made from result files alone."""

from collections.abc import Sequence
from pathlib import Path

from factorized_fl.bench.cells import Record
from factorized_fl.bench.differences import (
    ALONE,
    REFERENCE,
    Results,
    control_entry,
    read_results,
    verdicts,
)
from factorized_fl.bench.suites import Choice, Suite, choice_of
from factorized_fl.results.entries import parse_entry
from factorized_fl.results.schema import KINDS
from factorized_fl.results.statistic import Estimate
from factorized_fl.results.words import method_title

ASKED = ("fedap", "pacfl", "fedbn", "fedrep", "ditto")  # that the question on the page is about

INTRO = """# Benchmarks

`ffl bench SUITE --jobs 2 --data DIR` runs or resumes a suite. Each run becomes a file under `results/bench/` with its
commit, machine, configuration and seed. `ffl bench --page docs/benchmarks.md` writes this page from these files.

- Accuracies are means over clients and seeds in percent. One run gives both columns: *recalibrated* is measured with
  BatchNorm statistics that each client computes again on its training images, *plain* without that
  ([why](methods.md#recalibration)). Differences are between recalibrated runs where nothing else is said.
- Differences are in percentage points with 95% intervals over test images and seeds ([verdict.md](verdict.md)). A
  difference counts as decided if its p-value is at most 0.05 after Holm's correction for all comparisons of its table.
  With one seed the interval is that of the test images only.
- Learning rates, and the threshold of PACFL, were chosen for each entry on validation images of seed 1, with
  recalibration (`ffl bench SUITE --tune`, `results/bench/rates/`). All other options have their defaults.
- *Control* is what the method reaches while each client aggregates with itself alone. Rows with `oracle` use knowledge
  that no federation has ([methods.md](methods.md#oracles)): they say how much there is to gain.
"""


def page(results: Path, suites: Sequence[Suite]) -> str:
    """Return the whole page in Markdown; it says which runs are missing."""
    found = [read_results(suite, results) for suite in suites]
    begun = [each for each in found if each.runs]
    parts = [INTRO, _answer(found)]
    if begun:
        parts += [_which(begun), *(_section(each) for each in begun)]
    return "\n".join([*parts, _missing(found)])


def suite_section(suite: Suite, results: Path) -> str:
    """Return the section of one suite in Markdown."""
    found = read_results(suite, results)
    return _section(found) if found.runs else f"{suite.name}: no run is done.\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _row(heads) + f"|{'---|' * len(heads)}\n" + "".join(map(_row, rows))


def _points(estimate: Estimate | None, word: str = "") -> str:
    if estimate is None:
        return "-"
    interval = f"{100 * estimate.value:+.2f} [{100 * estimate.low:+.2f}, {100 * estimate.high:+.2f}]"
    return f"{interval} {word}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# -- the question


def _answer(found: Sequence[Results]) -> str:
    """Return the dated answer to the page's question, for both kinds of statistics."""
    names = [method_title(entry) for entry in ASKED]
    title = f"## Is Factorized-Peers better than {', '.join(names[:-1])} and {names[-1]}?\n"
    dates = sorted(str(run["machine"].get("date", ""))[:10] for each in found for run in _records(each))
    if not dates:
        return f"{title}\nThere is no answer yet: no run is done.\n"
    parts = [title, f"As of {dates[-1]}, the day of the last run on this page:\n"]
    for kind in reversed(KINDS):
        parts.append(_answer_of(found, kind))
    return "\n".join(parts)


def _records(results: Results) -> list[Record]:
    return [run for runs in results.runs.values() for run in runs.values()]


def _answer_of(found: Sequence[Results], kind: str) -> str:
    estimates = {
        (each.suite.name, entry): each.difference(REFERENCE, entry, kind)
        for each in found
        for entry in ASKED
        if entry in each.suite.entries
    }
    decided = verdicts(estimates)
    sentences = [f"**{kind.capitalize()}.** Of {_count(len(estimates), 'comparison')}, {len(decided)} have runs."]
    for word, says in (("better", "is better"), ("worse", "is worse"), ("undecided", "is neither better nor worse")):
        keys = [key for key, verdict in decided.items() if verdict == word]
        sentences.append(f"It {says} in {len(keys)}{_where(keys)}.")
    if without := [key for key, estimate in estimates.items() if estimate is None]:
        sentences.append(f"Not run{_where(without)}.")
    seeds = {each.suite.name: len(each.runs.get(REFERENCE, {})) for each in found}
    rows = [
        [suite, str(seeds[suite])]
        + [_points(estimates.get((suite, e)), decided.get((suite, e), "").replace("undecided", "")) for e in ASKED]
        for suite in dict.fromkeys(suite for suite, _ in decided)
    ]
    heads = ("Factorized-Peers is better by", "seeds", *(f"than {method_title(entry)}" for entry in ASKED))
    return " ".join(sentences) + "\n" + (f"\n{_table(heads, rows)}" if rows else "")


def _where(keys: Sequence[tuple[str, str]]) -> str:
    """Return the comparisons by suite, as the end of a sentence."""
    of_suite: dict[str, list[str]] = {}
    for suite, entry in keys:
        of_suite.setdefault(suite, []).append(entry)
    return ": " + "; ".join(f"{suite} ({', '.join(entries)})" for suite, entries in of_suite.items()) if keys else ""


# -- when to use which, and what did not work


def _is_real(entry: str) -> bool:
    return not {"oracle", "control"} & parse_entry(entry).own.keys()


def _ranked(results: Results) -> list[str]:
    """Return the entries that a federation could use, best first."""
    return sorted(filter(_is_real, results.runs), key=lambda entry: -results.mean(entry))


def _which(found: Sequence[Results]) -> str:
    rows = []
    for each in found:
        best, *others = _ranked(each) or [""]
        if not best:
            continue
        gaps = {(each.suite.name, other): each.difference(best, other) for other in others}
        decided = verdicts(gaps)
        close = [other for (_, other), verdict in decided.items() if verdict != "better"]
        ceilings = [entry for entry in each.runs if "oracle" in parse_entry(entry).own]
        top = max(ceilings, key=each.mean, default="")
        rows.append(
            [
                each.suite.name,
                f"{best} ({100 * each.mean(best):.2f})",
                ", ".join(close) or "none",
                _points(each.difference(best, ALONE)),
                f"{top} ({100 * each.mean(top):.2f})" if top else "-",
            ]
        )
    heads = ("scenario", "best", "not decidedly worse", "best over Stand-Alone", "best with an oracle")
    return f"## When to use which\n\n{_table(heads, rows)}\n{_failures(found)}"


def _failures(found: Sequence[Results]) -> str:
    """Return what did not work: entries below Stand-Alone or their control, diverged clients, inactive methods."""
    lines = []
    for each in found:
        name, real = each.suite.name, _ranked(each)
        for other, says in ((lambda entry: ALONE, "Stand-Alone"), (control_entry, "their controls")):
            gaps = {
                (name, e): each.difference(e, other(e)) for e in real if says != "their controls" or other(e) != ALONE
            }
            worse = [entry for (_, entry), verdict in verdicts(gaps).items() if verdict == "worse"]
            if worse:
                lines.append(f"- {name}: below {says}: {', '.join(worse)}.")
        lost = [
            f"{entry} ({_count(count, 'client')})"
            for entry, runs in each.runs.items()
            if (count := sum(client["loss"] is None for run in runs.values() for client in run["summary"]["clients"]))
        ]
        if lost:
            lines.append(f"- {name}: diverged: {', '.join(lost)}.")
        idle = [
            e for e, runs in each.runs.items() if any(run["summary"].get("activated") is False for run in runs.values())
        ]
        if idle:
            lines.append(f"- {name}: never did what distinguishes the method, in some run: {', '.join(idle)}.")
    nothing = "- Nothing so far: no entry is decidedly below Stand-Alone or its control, and none diverged."
    return "## What did not work\n\n" + "\n".join(lines or [nothing]) + "\n"


# -- the tables


def _section(results: Results) -> str:
    """Return the table of a suite, best first, and its commits."""
    entries = sorted(results.runs, key=lambda entry: -results.mean(entry))
    name = results.suite.name
    alone = {(name, entry): results.difference(entry, ALONE) for entry in entries}
    control = {(name, e): results.difference(e, control_entry(e)) for e in entries if control_entry(e) != ALONE}
    reference = {(name, entry): results.difference(REFERENCE, entry) for entry in entries}
    columns = [(estimates, verdicts(estimates)) for estimates in (alone, control, reference)]
    rows = []
    for entry in entries:
        runs = results.runs[entry].values()
        megabytes = sum(run["summary"]["up_bytes"] + run["summary"]["down_bytes"] for run in runs) / len(runs) / 1e6
        key = (name, entry)
        rows.append(
            [
                entry,
                _chosen(next(iter(runs))["configuration"]["lr"], choice_of(entry, results.choices)),
                str(len(runs)),
                *(f"{100 * results.mean(entry, kind):.2f}" for kind in reversed(KINDS)),
                *(
                    _points(of.get(key), "" if words.get(key) == "undecided" else words.get(key, ""))
                    for of, words in columns
                ),
                f"{megabytes:,.1f}",
            ]
        )
    heads = ["run", "rate", "seeds", "recalibrated", "plain", "over Stand-Alone", "over its control"]
    heads += ["Factorized-Peers over it", "MB"]
    commits = ", ".join(sorted({str(record["commit"])[:9] for record in _records(results)}))
    minutes = sum(record["seconds"] for record in _records(results)) / 60
    return (
        f"## {name}\n\n{_table(heads, rows)}\nCommits: {commits}. {minutes:.0f} minutes of computation in all. "
        f"The control of an entry without a value in *over its control* is Stand-Alone, or was not run.\n"
    )


def _chosen(rate: float, choice: Choice) -> str:
    options = [f"{key}={value}" for key, value in choice.items() if key != "lr"]
    return f"{rate:g}" + (f" ({', '.join(options)})" if options else "")


def _missing(found: Sequence[Results]) -> str:
    lines = []
    for each in found:
        count = sum(map(len, each.runs.values())) + len(each.missing)
        if each.missing:
            entries = list(dict.fromkeys(cell.entry for cell in each.missing))
            named = "none of its runs is done" if not each.runs else f"runs of {', '.join(entries)}"
            lines.append(f"- {each.suite.name}: {len(each.missing)} of {count} runs ({named}).")
        if untuned := [entry for entry in each.suite.tuned_entries if entry in each.runs and entry not in each.choices]:
            lines.append(f"- {each.suite.name}: not tuned, so with the profile's rate: {', '.join(untuned)}.")
        edge = [
            e
            for e, one in each.choices.items()
            if (tried := each.suite.rates(e)) and one["lr"] in (tried[0], tried[-1])
        ]
        if edge := [entry for entry in edge if entry in each.runs]:
            lines.append(
                f"- {each.suite.name}: the best rate is the least or largest that was tried: {', '.join(edge)}."
            )
    return "## What is missing\n\n" + "\n".join(lines or ["- Nothing."]) + "\n"
