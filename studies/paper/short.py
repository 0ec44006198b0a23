"""The content of the one-page summary: a small table, one effect for each of ten claims, and the missing runs."""

import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from studies.paper.cells import Cell, Key, published_mean, read_data
from studies.paper.claims import NOT_TESTABLE, Check, Judged
from studies.paper.findings import CLOSE
from studies.paper.grid import STUDIES, reconstruction
from studies.paper.table import Mean, Run, Table, mean_of

SUMMARY = read_data("short.toml")


class Entry(NamedTuple):
    """One method in one setting: the published mean, ours as printed, and ours with the tuned variant."""

    paper: float | None
    printed: Mean | None
    tuned: Mean | None
    seeds: int
    inert: bool  # the method never had its effect, such as a split

    @property
    def far(self) -> bool:
        """Whether our mean of the method as printed is farther than CLOSE points from the published one."""
        return self.paper is not None and self.printed is not None and abs(self.printed.value - self.paper) > CLOSE


def summary(table: Table) -> dict[str, list[Entry]]:
    """Return per method one entry for each setting of short.toml."""
    stands_for = reconstruction()
    keys = [tuple(place["cell"].split("/")) for place in SUMMARY["settings"]]
    return {method: [_entry(table, (*key, method), stands_for) for key in keys] for method in SUMMARY["methods"]}


def _entry(table: Table, key: Key, stands_for: dict[Key, Cell]) -> Entry:
    runs, other = table.of(*key), stands_for.get(key)
    paper = published_mean(*key)
    tuned = mean_of(table.of(*other.key)) if other else None
    inert = any(run.inactive for run in runs)
    return Entry(paper[0] if paper else None, mean_of(runs), tuned, len(runs), inert)


class Effect(NamedTuple):
    """A claim with its verdict and one of its checks."""

    judged: Judged
    check: Check | None
    interval: str  # points with a 95% interval, or the check's figures if they have no error


def effects(judged: Sequence[Judged]) -> list[Effect]:
    """Return one effect for each claim of short.toml.

    That is the first testable check that was run; for a claim about every case it is the check that speaks most against
    the claim.
    """
    by_name = {one.claim.name: one for one in judged}
    return [_effect(by_name[name]) for name in SUMMARY["claims"]]


def _effect(one: Judged) -> Effect:
    ran = [check for check in one.ran if check.outcome != NOT_TESTABLE]
    if not ran:
        return Effect(one, None, "-")
    measured = [(check.sign * check.effect.value, at) for at, check in enumerate(ran) if check.effect]
    check = ran[min(measured)[1] if one.claim.every and measured else 0]
    if check.effect is None:
        return Effect(one, check, check.figures)
    found = check.effect
    return Effect(one, check, f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})")


class Left(NamedTuple):
    """A cell that was not run, and how many minutes it would take on the GPU of the other cells."""

    cell: Cell
    minutes: float | None


def left(table: Table, study: str) -> Iterator[Left]:
    """Yield the cells of a study that were not run with the first seed, in the order in which they would be."""
    for cell in STUDIES[study].own:
        if not table.of(*cell.key):
            yield Left(cell, _minutes(table, cell))


def _minutes(table: Table, cell: Cell) -> float | None:
    """Return the longest time of the same method in the same kind of setting, or 1.5 times the median of the kind."""
    kind = _kind(cell.setting)
    timed = [(key, run) for key, runs in table.cells.items() if key[0] != "choices" for run in runs if _on_gpu(run)]
    alike = [(key, run.seconds) for key, run in timed if _kind(key[1]) == kind]
    same = [seconds for key, seconds in alike if key[2].partition("+")[0] == cell.method]
    if same:
        return max(same) / 60
    return 1.5 * median(seconds for _, seconds in alike) / 60 if alike else None


def _on_gpu(run: Run) -> bool:
    return str(run.entry("environment/device")).startswith("NVIDIA")


def _kind(setting: str) -> str:
    """Return the settings that take equally long: one dataset size, number of rounds and network."""
    return "labels" if re.search(r"(permuted|standard)-(non-)?iid$", setting) else setting
