"""The page of benchmark tables, made from result files alone."""

from collections.abc import Sequence
from pathlib import Path

from factorized_fl.bench.cells import Record
from factorized_fl.bench.differences import (
    ALONE,
    REFERENCE,
    Gap,
    Results,
    Verdict,
    control_entry,
    is_real,
    read_results,
    verdicts,
)
from factorized_fl.bench.suites import Choice, Suite, choice_of
from factorized_fl.results.entries import parse_entry
from factorized_fl.results.schema import KINDS
from factorized_fl.results.words import method_title

ASKED = ("fedap", "pacfl", "fedbn", "fedrep", "ditto")  # that the question on the page is about

INTRO = """# Benchmarks

`ffl bench SUITE --jobs 2 --data DIR` runs or resumes a suite. Each run becomes a file under `results/bench/` with its
commit, machine, configuration and seed. `ffl bench --page docs/benchmarks.md` writes this page from these files.

- Accuracies are means over clients and seeds in percent. One run gives both columns: *recalibrated* is measured with
  BatchNorm statistics that each client computes again on its training images, *plain* without that
  ([why](methods.md#recalibration)). Differences are between recalibrated runs where nothing else is said.
- Differences are in percentage points with 95% intervals over test images and seeds ([verdict.md](verdict.md)). A
  difference is marked *better* or *worse* if its p-value is at most 0.05 after Holm's correction for all comparisons of
  its column, or of the whole table in the answer below. With one seed the interval is that of the test images only, and
  nothing is decided. Rows with different numbers of seeds compare in their differences only.
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


def _points(gap: Gap | None, word: str = "") -> str:
    if gap is None:
        return "-"
    estimate = gap.estimate
    interval = f"{100 * estimate.value:+.2f} [{100 * estimate.low:+.2f}, {100 * estimate.high:+.2f}]"
    return interval if word in ("", "undecided") else f"{interval} {word}"


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
    for word, says in (
        ("better", "is better"),
        ("worse", "is worse"),
        ("undecided", "is neither, as far as can be decided,"),
    ):
        keys = [key for key, verdict in decided.items() if verdict == word]
        sentences.append(f"It {says} in {len(keys)}{_where(keys)}.")
    if without := [key for key, estimate in estimates.items() if estimate is None]:
        sentences.append(f"Not run{_where(without)}.")
    seeds = {each.suite.name: len(each.runs.get(REFERENCE, {})) for each in found}
    rows = [
        [suite, str(seeds[suite])] + [_points(estimates.get((suite, e)), decided.get((suite, e), "")) for e in ASKED]
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


def _ranked(results: Results) -> list[str]:
    """Return the entries that a federation could use, best first."""
    return sorted(filter(is_real, results.runs), key=lambda entry: -results.mean(entry))


def _columns(results: Results) -> list[tuple[dict[tuple[str, str], Gap | None], dict[tuple[str, str], Verdict]]]:
    """Return the differences of all entries from Stand-Alone and from their controls, and of the reference from them.

    With each column go its verdicts, which are on entries that a federation could run.
    """
    name, entries = results.suite.name, list(results.runs)
    alone = {(name, entry): results.difference(entry, ALONE) for entry in entries}
    control = {(name, e): results.difference(e, control_entry(e)) for e in entries if control_entry(e) != ALONE}
    reference = {(name, entry): results.difference(REFERENCE, entry) for entry in entries}
    columns = (alone, control, reference)
    return [(gaps, verdicts({key: gap for key, gap in gaps.items() if is_real(key[1])})) for gaps in columns]


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
        name = each.suite.name
        for (_, words), says in zip(_columns(each), ("Stand-Alone", "their controls"), strict=False):
            if worse := [entry for (_, entry), verdict in words.items() if verdict == "worse"]:
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
    """Return the tables of a suite, best first: what a federation could run, then ceilings and controls."""
    entries = sorted(results.runs, key=lambda entry: -results.mean(entry))
    columns = _columns(results)
    heads = ["run", "rate", "seeds", "recalibrated", "plain", "over Stand-Alone", "over its control"]
    heads += ["Factorized-Peers over it", "MB"]
    parts = [f"## {results.suite.name}"]
    for title, real in (("", True), ("Ceilings and controls:", False)):
        rows = [_entry_row(results, entry, columns) for entry in entries if is_real(entry) == real]
        parts += [*([title] if title else []), _table(heads, rows)] if rows else []
    commits = ", ".join(sorted({str(record["commit"])[:9] for record in _records(results)}))
    minutes = sum(record["seconds"] for record in _records(results)) / 60
    parts.append(
        f"Commits: {commits}. {minutes:.0f} minutes of computation in all. The control of an entry without a value in "
        "*over its control* is Stand-Alone, or was not run.\n"
    )
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _entry_row(
    results: Results,
    entry: str,
    columns: Sequence[tuple[dict[tuple[str, str], Gap | None], dict[tuple[str, str], Verdict]]],
) -> list[str]:
    runs, key = list(results.runs[entry].values()), (results.suite.name, entry)
    megabytes = sum(run["summary"]["up_bytes"] + run["summary"]["down_bytes"] for run in runs) / len(runs) / 1e6
    return [
        entry,
        _chosen(runs[0]["configuration"]["lr"], choice_of(entry, results.choices)),
        str(len(runs)),
        *(f"{100 * results.mean(entry, kind):.2f}" for kind in reversed(KINDS)),
        *(_points(gaps.get(key), words.get(key, "")) for gaps, words in columns),
        f"{megabytes:,.1f}",
    ]


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
