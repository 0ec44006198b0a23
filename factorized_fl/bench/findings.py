"""Sentences about the results of benchmarks: nothing is claimed beyond the verdicts of a family."""

from collections.abc import Iterable, Mapping, Sequence

from factorized_fl.bench.differences import REFERENCE, Gap, Results, Verdict, judge
from factorized_fl.bench.words import counted, entry_title, in_points, table, titles
from factorized_fl.results.schema import KINDS

ASKED = ("fedap", "pacfl", "fedbn", "fedrep", "ditto")  # that the question on the page is about


def with_verdict(gaps: Mapping[str, Gap], verdict: Verdict) -> list[str]:
    """Return the entries of a family with one verdict."""
    return [entry for entry, gap in gaps.items() if gap.verdict == verdict]


# -- what is shown


def findings(found: Sequence[Results]) -> str:
    """Return what the results of some suites show."""
    return "## What this shows\n\n" + "\n".join(line for each in found for line in _of_suite(each)) + "\n"


def _of_suite(results: Results) -> Iterable[str]:
    yield f"- **{results.suite.name}**"
    if alone := results.over_alone(results.methods):
        yield f"    - Compared with Stand-Alone, {standing(alone)}"
    if controls := results.over_controls(results.methods):
        yield f"    - Compared with their controls, which shows what the other clients add, {standing(controls)}"
    oracles = results.over_alone(results.oracles)
    if gains := [f"{entry_title(e)} {in_points(oracles[e])}" for e in with_verdict(oracles, "better")]:
        yield f"    - Oracles show how much there is to gain over Stand-Alone: {', '.join(gains)}."


def standing(gaps: Mapping[str, Gap]) -> str:
    """Return how many entries of a family are better, worse and not decided, as the end of a sentence."""
    better, worse = (with_verdict(gaps, verdict) for verdict in ("better", "worse"))
    counts = [
        f"{_are(len(own))} {word}" + (f" ({titles(own)})" if own else "")
        for word, own in (("better", better), ("worse", worse))
    ]
    rest = len(gaps) - len(better) - len(worse)
    return f"of {counted(len(gaps), 'method')} {', '.join(counts)}; {_are(rest)} not decided."


def _are(number: int) -> str:
    return f"{number or 'none'} {'is' if number == 1 else 'are'}"


# -- the question


def answer(found: Sequence[Results]) -> str:
    """Return the dated answer to the page's question, for both kinds of statistics."""
    title = f"## Is Factorized-Peers better than {titles(ASKED)}?\n"
    dates = sorted(str(run["machine"].get("date", ""))[:10] for each in found for run in each.records)
    if not dates:
        return f"{title}\nThere is no answer yet: no run is done.\n"
    rows, parts = [], [f"{title}\nAs of {dates[-1]}, the day of the last run on this page:\n"]
    for kind in reversed(KINDS):
        gaps = judge(
            {
                (each.suite.name, entry): each.difference(REFERENCE, entry, kind)
                for each in found
                for entry in ASKED
                if entry in each.suite.entries
            }
        )
        of_suite: dict[str, dict[str, Gap]] = {}
        for (suite, entry), gap in gaps.items():
            of_suite.setdefault(suite, {})[entry] = gap
        parts += [f"- {suite}, {kind}: {_asked(own)}" for suite, own in of_suite.items()]
        rows += [[suite, kind, *(in_points(own.get(entry)) for entry in ASKED)] for suite, own in of_suite.items()]
    begun = {row[0] for row in rows}
    if without := [each.suite.name for each in found if each.suite.name not in begun]:
        parts.append(f"- No answer yet for {', '.join(without)}: no such run is done.")
    heads = ("Factorized-Peers is better by", "statistics", *(f"than {entry_title(entry)}" for entry in ASKED))
    return "\n".join(parts) + "\n" + (f"\n{table(heads, rows)}" if rows else "")


def _asked(gaps: Mapping[str, Gap]) -> str:
    words: dict[Verdict, str] = {"better": "better than", "worse": "worse than", "undecided": "not decided against"}
    found = [f"{says} {titles(own)}" for verdict, says in words.items() if (own := with_verdict(gaps, verdict))]
    return "; ".join(found) + "."


# -- when to use which, and what did not work


def which(found: Sequence[Results]) -> str:
    """Return the best entries of each scenario."""
    rows = []
    for each in found:
        if not each.methods:
            continue
        best, alone = each.methods[0], each.over_alone(each.methods)
        top = each.oracles[0] if each.oracles else ""
        rows.append(
            [
                each.suite.name,
                f"{entry_title(best)}, {100 * each.mean(best):.1f}",
                in_points(alone.get(best)),
                titles(with_verdict(alone, "better")),
                f"{entry_title(top)}, {100 * each.mean(top):.1f}" if top else "-",
            ]
        )
    heads = ("scenario", "best mean accuracy", "over Stand-Alone", "all better than Stand-Alone", "best with an oracle")
    advice = (
        "The best of many methods is named with hindsight, so its lead is rather too large. Where no method is better "
        "than\nStand-Alone, none has been shown to be worth its traffic."
    )
    return f"## When to use which\n\n{table(heads, rows)}\n{advice}\n"


def failures(found: Sequence[Results]) -> str:
    """Return what did not work: entries below Stand-Alone or their control, diverged clients, inactive methods."""
    lines = []
    for each in found:
        name, methods = each.suite.name, each.methods
        for gaps, over in ((each.over_alone(methods), "Stand-Alone"), (each.over_controls(methods), "their controls")):
            if worse := with_verdict(gaps, "worse"):
                lines.append(f"- {name}: worse than {over}: {titles(worse)}.")
        lost = {
            e: sum(one["loss"] is None for run in runs.values() for one in run["summary"]["clients"])
            for e, runs in each.runs.items()
        }
        if diverged := [f"{entry_title(entry)} ({counted(count, 'client')})" for entry, count in lost.items() if count]:
            lines.append(f"- {name}: training diverged: {', '.join(diverged)}.")
        if idle := [
            f"{entry_title(entry)} ({counted(each.inactive(entry), 'run')})"
            for entry in each.runs
            if each.inactive(entry)
        ]:
            lines.append(f"- {name}: did not activate, so its results are not evidence for it: {', '.join(idle)}.")
    nothing = "- Nothing so far: no method is worse than Stand-Alone or its control, and none diverged."
    return "## What did not work\n\n" + "\n".join(lines or [nothing]) + "\n"
