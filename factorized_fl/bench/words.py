"""The words of pages about benchmarks: titles of entries, differences in points, lists of names, tables."""

from collections.abc import Sequence

from factorized_fl.bench.differences import Gap
from factorized_fl.results.entries import Entry, parse_entry
from factorized_fl.results.words import method_title

_ORACLES = {"groups": "true groups", "aligned": "true groups and classes", "centralised": "domains pooled"}


def entry_title(entry: str) -> str:
    """Return the name of an entry for people: its method's title, with its own settings in brackets."""
    parsed = parse_entry(entry)
    settings = {key: value for key, value in parsed.own.items() if key not in ("oracle", "control")}
    oracle = parsed.own.get("oracle")
    notes = [_ORACLES.get(oracle, oracle)] if oracle else []
    notes += ["each client alone"] if parsed.own.get("control") else []
    return method_title(Entry(parsed.method, settings).name) + (f" ({', '.join(notes)})" if notes else "")


def in_points(gap: Gap | None) -> str:
    """Return a difference in points with half of its interval and its verdict, if it has one; "-" for none."""
    if gap is None:
        return "-"
    text = f"{100 * gap.estimate.value:+z.1f} ± {100 * gap.estimate.margin:.1f}"
    return text + (" (1 seed)" if gap.seeds == 1 else "") + (f" **{gap.verdict}**" if gap.decided else "")


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence; "none" without any."""
    *first, last = names or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def titles(entries: Sequence[str]) -> str:
    """Return the titles of entries as in a sentence."""
    return listed([entry_title(entry) for entry in entries])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))
