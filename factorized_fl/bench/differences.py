"""Differences between entries of a suite, from their result files."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from factorized_fl.bench.cells import Record, mean_accuracy, read_cell, tests_of
from factorized_fl.bench.rates import read_rates
from factorized_fl.bench.suites import Cell, Choices, Suite, cells_of
from factorized_fl.methods import find_method
from factorized_fl.results.effect import mean_difference
from factorized_fl.results.entries import parse_entry
from factorized_fl.results.statistic import LEVEL, Estimate, holm

REFERENCE, ALONE = "factorized-peers", "stand-alone"
Verdict = Literal["better", "worse", "undecided"]
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True)
class Gap:
    """The mean difference of two entries, the number of seeds that both have, and what `judge` decides about it."""

    estimate: Estimate
    seeds: int
    verdict: Verdict = "undecided"

    @property
    def decided(self) -> bool:
        """Return whether one of the two entries is better."""
        return self.verdict != "undecided"


@dataclass(frozen=True)
class Results:
    """The finished runs of a suite by entry and seed, and the runs that are missing."""

    suite: Suite
    runs: Mapping[str, Mapping[int, Record]]
    missing: Sequence[Cell]
    choices: Choices = field(default_factory=dict)

    def mean(self, entry: str, kind: str = "recalibrated") -> float:
        """Return the mean accuracy of an entry over its clients and seeds."""
        return statistics.fmean(mean_accuracy(run, kind) for run in self.runs[entry].values())

    @property
    def records(self) -> list[Record]:
        """Return the records of all finished runs."""
        return [run for runs in self.runs.values() for run in runs.values()]

    def inactive(self, entry: str) -> int:
        """Return the number of an entry's runs that never did what distinguishes the method."""
        return sum(run["summary"].get("activated") is False for run in self.runs[entry].values())

    @property
    def methods(self) -> list[str]:
        """Return the entries that a federation could run, best first; those with fewer seeds than others come last."""
        most = max(map(len, self.runs.values()), default=0)
        real = filter(is_real, self.runs)
        return sorted(real, key=lambda entry: (len(self.runs[entry]) < most, -self.mean(entry)))

    @property
    def oracles(self) -> list[str]:
        """Return the entries that use an oracle, best first."""
        found = [entry for entry in self.runs if "oracle" in parse_entry(entry).own]
        return sorted(found, key=self.mean, reverse=True)

    def over_alone(self, entries: Sequence[str]) -> dict[str, Gap]:
        """Return what entries gain over Stand-Alone, judged as one family without methods that did not activate."""
        return judge({entry: self.difference(entry, ALONE) for entry in self._active(entries)})

    def over_controls(self, entries: Sequence[str]) -> dict[str, Gap]:
        """Return what entries gain over their controls, judged as one family without methods that did not activate."""
        return judge({entry: self.difference(entry, control_entry(entry)) for entry in self._active(entries)})

    def of_reference(self, entries: Sequence[str]) -> dict[str, Gap]:
        """Return what Factorized-Peers gains over entries, judged as one family without those that did not activate."""
        return judge({entry: self.difference(REFERENCE, entry) for entry in self._active(entries)})

    def _active(self, entries: Sequence[str]) -> list[str]:
        return [entry for entry in entries if not self.inactive(entry)]

    def difference(self, ours: str, theirs: str, kind: str = "recalibrated") -> Gap | None:
        """Return the mean difference of two entries over the seeds that both have; None for one entry or no such seed.

        With recalibration it is known which image was classified right, without only how many.
        """
        if ours == theirs:
            return None
        runs, others = self.runs.get(ours, {}), self.runs.get(theirs, {})
        seeds = sorted(runs.keys() & others.keys())
        found = mean_difference(*([tests_of(of[seed], kind) for seed in seeds] for of in (runs, others)))
        return None if found is None else Gap(found, len(seeds))


def read_results(suite: Suite, results: Path, choices: Choices | None = None) -> Results:
    """Return the finished runs of a suite with its tuned rates, or those of `choices`.

    Raise UserError for a damaged file or one of another configuration.
    """
    choices = read_rates(suite, results) if choices is None else choices
    runs: dict[str, dict[int, Record]] = {}
    missing = []
    for cell in cells_of(suite, choices):
        path = cell.path(results)
        if path.exists():
            runs.setdefault(cell.entry, {})[cell.seed] = read_cell(path, cell.config)
        else:
            missing.append(cell)
    return Results(suite, runs, missing, choices)


def control_entry(entry: str) -> str:
    """Return the entry that is the control of another: what its method reaches while clients do not meet.

    The card of a method names the method whose control is the same bit for bit. An entry that is a control, or that
    uses an oracle, has the control of its method.
    """
    method = parse_entry(entry).method
    control = find_method(method).card.control or method
    return ALONE if control == ALONE else f"{control}:control=true"


def is_real(entry: str) -> bool:
    """Return whether a federation could run an entry: it is no control and uses no oracle."""
    return not {"oracle", "control"} & parse_entry(entry).own.keys()


def judge(gaps: Mapping[H, Gap | None]) -> dict[H, Gap]:
    """Return the known differences of a family with verdicts, by Holm's procedure over those of several seeds.

    One seed decides nothing: other seeds may give another sign.
    """
    known = {key: gap for key, gap in gaps.items() if gap is not None}
    adjusted = holm({key: gap.estimate.p for key, gap in known.items() if gap.seeds > 1})
    return {
        key: replace(gap, verdict="better" if gap.estimate.value > 0 else "worse")
        if adjusted.get(key, 1.0) <= LEVEL
        else gap
        for key, gap in known.items()
    }
