"""Summaries of runs that the page shows beside its tables of accuracies."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from studies.paper.cells import Key, title
from studies.paper.grid import STUDIES
from studies.paper.published import AVERAGE, published
from studies.paper.rows import Row
from studies.paper.runs import Run
from studies.paper.table import Table

OWN = "factorized-peers"
AVERAGING = ("fedavg", "factorized-fedavg", "without-mu")  # of the ablations, those that average over all clients
# The Stand-Alone runs that our own method is compared with, by setting.
ALONE: dict[str, Key] = {
    "domains": ("domains", "domains", "stand-alone"),
    "domains-unequal": ("beyond", "domains-unequal", "stand-alone"),
    "domains-dirichlet": ("beyond", "domains-dirichlet", "stand-alone"),
    "domains-random-labels": ("domains", "domains", "stand-alone"),
}


@dataclass(frozen=True)
class Gains:
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
            ours = table.of("beyond", setting, row)
            others = {"Stand-Alone": table.of(*alone)}
            others[title("stand-alone+settled")] = table.of("beyond", setting, "stand-alone+settled")
            if setting == "domains-random-labels":
                others["the same without random labels"] = table.of("beyond", "domains", row)
            for over, theirs in others.items():
                by_seed = {run.seed: run for run in theirs}
                if pairs := [(run, by_seed[run.seed]) for run in ours if run.seed in by_seed]:
                    yield _gains(row, setting, over, pairs)


def _gains(row: str, setting: str, over: str, pairs: Sequence[tuple[Run, Run]]) -> Gains:
    by_domain: dict[str, list[float]] = {}
    for one, other in pairs:
        counted = len(one.domains) - one.configuration["scrambled"]  # clients with random labels are the last ones
        both = list(zip(one.domains, one.accuracies(), other.accuracies(), strict=True))
        for domain, a, b in both[:counted]:
            by_domain.setdefault(domain, []).append(100 * (a - b))
    points = [gain for some in by_domain.values() for gain in some]
    mixing = [one.record["mixing"] for one, _ in pairs]
    weights = [statistics.fmean(map(sum, zip(each["own"], each["own_domain"], strict=True))) for each in mixing]
    return Gains(
        row=row,
        setting=setting,
        over=over,
        seeds=tuple(one.seed for one, _ in pairs),
        mean=statistics.fmean(points),
        least_domain=min(map(statistics.fmean, by_domain.values())),
        least_client=min(points),
        harmed=sum(gain < -1 - 1e-9 for gain in points),
        clients=len(points),
        own_weight=statistics.fmean(weights),
    )


def matching_bytes(run: Run) -> float:
    """Return what a client sends in a round for matching, with framing: what is uploaded and never downloaded."""
    sent = run.record["bytes"]
    return (sent["up_per_round"][-1] - sent["down_per_round"][-1]) / len(run.domains)


def machines(table: Table) -> dict[str, Any] | None:
    """Return on which devices how many runs took how long, and the runs that were not on the most common one."""
    runs = [(key, run) for key, several in table.cells.items() for run in several]
    seconds: dict[str, list[float]] = {}
    for device, took in (
        *((run.device, run.seconds) for _, run in runs),
        *((record["environment"]["device"], record["seconds"]) for record in table.heterogeneity),
    ):
        seconds.setdefault(device, []).append(took)
    devices = sorted(seconds, key=lambda device: (-len(seconds[device]), device))
    return (
        runs
        and {
            "devices": [(device, len(seconds[device]), sum(seconds[device]) / 3600) for device in devices],
            "short": sum(key[0] == "choices" for key, _ in runs),
            "commits": sorted({run.record["commit"] or "unknown" for _, run in runs}),
            "elsewhere": [(*key, run) for key, run in runs if run.device != devices[0]],
        }
    ) or None


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
    settings = {
        key[1]: [set(run.record["mixing"]["clusters"]) for run in runs if "mixing" in run.record]
        for key, runs in table.cells.items()
        if key[0] == study and key[2] == "clustered-fl"
    }
    return [setting for setting, runs in settings.items() if runs and all(len(clusters) == 1 for clusters in runs)]


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


def weights(table: Table) -> Iterator[list[str]]:
    """Yield per way of matching the mean weights to oneself, in the last round, and to others of one's domain."""
    for cell in (*STUDIES["ablation"].shown, *STUDIES["similarity"].own):
        runs = [run.record["mixing"] for run in table.get(cell) if "mixing" in run.record]
        if cell.method not in AVERAGING and runs:
            own, others = ([run[name] for run in runs] for name in ("own", "own_domain"))
            means = [statistics.fmean(map(statistics.fmean, each)) for each in (own, others)]
            last = statistics.fmean(run[-1] for run in own)
            yield [title(cell.row), *(f"{weight:.3f}" for weight in (means[0], last, means[1]))]


def last_own_weight(runs: Sequence[Run]) -> float | None:
    """Return the weight that clients gave to themselves in the last round; None if a run averaged nothing."""
    own = [run.record.get("mixing", {}).get("own") for run in runs]
    return statistics.fmean(weights[-1] for weights in own) if all(own) else None


def largest_size_differences(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the largest relative difference from a published size, with and without L1's gradient, by epochs."""
    farthest: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.setting.startswith("millions, ") and row.paper and row.ours is not None:
            case = ("without" if "no gradient" in row.method else "with", row.setting.removeprefix("millions, "))
            farthest[case] = max(farthest.get(case, 0.0), abs(row.ours / row.paper - 1))
    return farthest


def inconsistent_average() -> tuple[str, float, float]:
    """Return the method whose published average differs most from its columns, their mean, and the average."""
    found = []
    for method, row in published()["domains"].items():
        columns = [value[0] for place, value in row.items() if place not in (AVERAGE, "cost")]
        found.append((method, statistics.fmean(columns), row[AVERAGE][0]))
    return max(found, key=lambda each: abs(each[1] - each[2]))


def seeds_of(rows: Sequence[Row]) -> list[str]:
    """Return the sets of seeds that the entries of a table have, the smallest first."""
    return [", ".join(map(str, seeds)) for seeds in sorted({row.seeds for row in rows if row.seeds}, key=len)]
