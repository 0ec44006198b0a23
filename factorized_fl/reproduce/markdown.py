"""Rows of the results in Markdown."""

from collections.abc import Callable, Iterable, Sequence

from factorized_fl.reproduce.rows import Row
from factorized_fl.reproduce.show import value


def entry(row: Row) -> str:
    """paper / ours (difference)."""
    ours = "not run" if row.ours is None else value(row.ours, row.spread, row.unit)
    if row.paper is None:
        return ours
    digits = 2 if row.unit == "%" else 3
    gap = "" if row.difference is None else f" ({row.difference:+.{digits}f})"
    return f"{row.paper:.{digits}f} / {ours}{gap}"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}", *rows])


def pivot(rows: Sequence[Row], name: Callable[[str], str], transposed: bool = False) -> str:
    """Methods as columns and settings as lines; transposed, methods as lines."""
    entries = {(row.setting, row.method): entry(row) for row in rows}
    settings = list(dict.fromkeys(row.setting for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    if transposed and len(settings) <= 4:
        lines = [[name(m), *(entries.get((s, m), "") for s in settings)] for m in methods]
        return table(["", *settings], lines)
    return table(["", *map(name, methods)], [[s, *(entries.get((s, m), "") for m in methods)] for s in settings])


def folded(summary: str, content: str) -> str:
    """What few want to see: shown at a click."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def plain(text: str) -> str:
    """With stars that Markdown leaves alone."""
    return text.replace("*", "\\*")
