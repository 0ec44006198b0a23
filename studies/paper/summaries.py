"""Summaries of runs that the page shows beside its tables of accuracies."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from studies.paper.cells import Key, title
from studies.paper.runs import Run
from studies.paper.table import Table

OWN = "factorized-peers"
# The Stand-Alone runs that our own method is compared with, by setting.
ALONE: dict[str, Key] = {
    "domains": ("domains", "domains", "stand-alone"),
    "domains-unequal": ("beyond", "domains-unequal", "stand-alone"),
    "domains-dirichlet": ("beyond", "domains-dirichlet", "stand-alone"),
    "domains-random-labels": ("domains", "domains", "stand-alone"),
}


class Gains(NamedTuple):
    """Points that clients gained over another cell."""

    row: str
    setting: str
    over: str
    seeds: tuple[int, ...]
    mean: float
    least_domain: float
    least_client: float
    harmed: int  # clients that lost more than a point
    clients: int
    own_weight: float  # that clients give to their own domain, themselves included, from the second round on


def gains(table: Table) -> Iterator[Gains]:
    """Yield the gains of our own method in all settings that were run with both cells."""
    for setting, alone in ALONE.items():
        for row in (OWN, f"{OWN}+not-settled"):
            others = {"Stand-Alone": alone, title("stand-alone+settled"): ("beyond", setting, "stand-alone+settled")}
            if setting == "domains-random-labels":
                others["the same without random labels"] = ("beyond", "domains", row)
            for over, other in others.items():
                theirs = {run.seed: run for run in table.of(*other)}
                if ours := [run for run in table.of("beyond", setting, row) if run.seed in theirs]:
                    yield _gains(row, setting, over, [(run, theirs[run.seed]) for run in ours])


def _gains(row: str, setting: str, over: str, pairs: Sequence[tuple[Run, Run]]) -> Gains:
    by_domain: dict[str, list[float]] = {}
    for one, other in pairs:
        both = list(zip(one.domains, one.accuracies(), other.accuracies(), strict=True))
        counted = len(both) - one.record["configuration"]["scrambled"]  # clients with random labels are the last ones
        for domain, a, b in both[:counted]:
            by_domain.setdefault(domain, []).append(100 * (a - b))
    points = [gain for some in by_domain.values() for gain in some]
    return Gains(
        *(row, setting, over, tuple(one.seed for one, _ in pairs), statistics.fmean(points)),
        least_domain=min(map(statistics.fmean, by_domain.values())),
        least_client=min(points),
        harmed=sum(gain < -1 - 1e-9 for gain in points),
        clients=len(points),
        own_weight=statistics.fmean(one.entry("mixing/own/*") + one.entry("mixing/own_domain/*") for one, _ in pairs),
    )


def matching_bytes(run: Run) -> float:
    """Return what a client sends in a round for matching, with framing: what is uploaded and never downloaded."""
    return (run.entry("bytes/up_per_round/-1") - run.entry("bytes/down_per_round/-1")) / len(run.domains)


def machines(table: Table) -> dict[str, Any]:
    """Return on which devices how many runs took how long, and the runs that were not on the most common one."""
    runs = [(key, run) for key, several in table.cells.items() for run in several]
    seconds: dict[str, list[float]] = {}
    for run in (*(run for _, run in runs), *table.heterogeneity):
        seconds.setdefault(run.device, []).append(run.seconds)
    devices = sorted(seconds, key=lambda device: (-len(seconds[device]), device))
    return {
        "devices": [(device, len(seconds[device]), sum(seconds[device]) / 3600) for device in devices],
        "short": sum(key[0] == "choices" for key, _ in runs),
        "commits": sorted({run.record["commit"] or "unknown" for _, run in runs}),
        "elsewhere": [(*key, run) for key, run in runs if run.device != devices[0]],
    }


def notes(table: Table, study: str) -> list[str]:
    """Return what was noted when runs of a study were made, with the cells and seeds that it is about."""
    runs = [(key, run) for key, several in table.cells.items() if key[0] == study for run in several]
    noted: dict[str, dict[str, list[int]]] = {}
    for (_, setting, row), run in runs:
        if "note" in run.record:
            cells = noted.setdefault(run.record["note"], {})
            cells.setdefault(f"{title(row)}, {setting}", []).append(run.seed)
    lines = []
    for note, cells in noted.items():
        named = [f"{cell}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" for cell, seeds in cells.items()]
        whole = sum(map(len, cells.values())) == len(runs)
        lines.append(f"{'All runs' if whole else '; '.join(sorted(named))}: {note}.")
    return sorted(lines)


def never_split(table: Table, study: str) -> list[str]:
    """Return the settings of a study in which Clustered-FL never split."""
    cells = {key[1]: runs for key, runs in table.cells.items() if (key[0], key[2]) == (study, "clustered-fl")}
    clusters = {setting: [run.entry("mixing/clusters") for run in runs] for setting, runs in cells.items()}
    return [setting for setting, found in clusters.items() if all(some and len(set(some)) == 1 for some in found)]


def fomo_weights(table: Table, study: str) -> Iterator[list[str]]:
    """Yield per cell of FedFOMO until which round a client used another's model, and how often clients went back."""
    for (name, setting, row), several in table.cells.items():
        runs = [run.record["mixing"] for run in several if "mixing" in run.record]
        if name == study and row.partition("+")[0] == "fedfomo" and runs:
            # `own` and `reverted` begin with the second round.
            last = max((k for run in runs for k, weight in enumerate(run["own"], 2) if weight < 1), default=1)
            rounds = max(len(run["own"]) + 1 for run in runs)
            shares = [share for run in runs for share in run.get("reverted", ())]
            yield [title(row), setting, f"{last} of {rounds}", f"{statistics.fmean(shares):.0%}" if shares else "-"]
