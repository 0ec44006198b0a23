"""All finished cells, and the statistics that tables and claims are made of."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from factorized_fl.reproduce.cells import Cell, Result, read_record, read_result
from factorized_fl.reproduce.choices import read_choices
from factorized_fl.reproduce.departures import NEARER, origin, reconstructs
from factorized_fl.reproduce.studies import STUDIES
from factorized_fl.results.rundir import Record

Key = tuple[str, str, str]  # study, setting and row
ROUNDS = 10  # the last ones, over which the ups and downs of a mean over clients are measured


@dataclass(frozen=True)
class Collection:
    """What lies under a folder of results."""

    cells: dict[Key, list[Result]]  # by study, setting and row; in the order of the seeds
    heterogeneity: list[Record]
    choices: list[Record]
    draws: Mapping[str, Record] = field(default_factory=dict)  # of unequal shares, by data set
    between_seeds: float = 0.0  # what a difference of two cells varies by from seed to seed, in points
    printed: Mapping[Key, list[Result]] = field(default_factory=dict)  # what others stand for

    def of(self, what: str, setting: str, row: str) -> list[Result]:
        """The runs of a cell, one per seed; none if it was not run."""
        return self.cells.get((what, setting, row), [])

    def get(self, cell: Cell) -> list[Result]:
        """The same for a cell, whatever its seed."""
        return self.of(cell.what, cell.setting, cell.row)


def collect(results: Path) -> Collection:
    """Read all finished cells of all studies, every seed there is."""
    cells = {}
    for study in STUDIES.values():
        for cell in study.own:
            ending = cell.path(results).name.removesuffix("-seed1.json")
            paths = cell.path(results).parent.glob(f"{ending}-seed*.json")
            found = [result for path in paths if (result := read_result(path))]
            if found:
                cells[cell.what, cell.setting, cell.row] = sorted(found, key=lambda result: result.seed)
    others = sorted((results / "heterogeneity").glob("seed*.json"))
    drawn = sorted((results / "draws").glob("*.json"))
    return Collection(
        cells,
        heterogeneity=[read_record(path, "dense", "averaged") for path in others],
        choices=read_choices(results),
        draws={path.stem: read_record(path, "clients", "means") for path in drawn},
        between_seeds=_between_seeds(cells),
    )


def _between_seeds(cells: Mapping[Key, Sequence[Result]]) -> float:
    """Standard deviation from seed to seed of the difference of two cells' means, pooled over all pairs of a setting.

    Two seeds of one pair tell little about it; many pairs do. Pairs that share a cell are not independent, which makes
    it less certain, not larger or smaller.
    """
    squares = freedom = 0.0
    for (key, one), (other_key, other) in combinations(cells.items(), 2):
        if key[:2] != other_key[:2] or key[0] == "choices" or len(one[0].domains) == 1:
            continue
        means = [{r.seed: 100 * statistics.fmean(r.accuracies()) for r in runs} for runs in (one, other)]
        gaps = [means[0][seed] - means[1][seed] for seed in means[0].keys() & means[1].keys()]
        if len(gaps) > 1:
            squares += statistics.variance(gaps) * (len(gaps) - 1)
            freedom += len(gaps) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def reconstructed(found: Collection) -> Collection:
    """The same with runs as the published ones seem to have been in the place of those they stand for, or nothing."""
    cells = {
        key: results for key, results in found.cells.items() if not _can_be_reconstructed(key[2].partition("+")[0])
    }
    for cell in STUDIES["departures"].shown:
        if reconstructs(cell) and (results := found.get(cell)):
            cells[*origin(cell), cell.method] = results
    return replace(found, cells=cells, printed=found.cells)


def _can_be_reconstructed(method: str) -> bool:
    return method in NEARER or issubclass(METHODS[method], Factorized)


@dataclass(frozen=True)
class Mean:
    """A mean in percent over clients and seeds, and the spread between seeds if there are several."""

    value: float
    spread: float | None
    seeds: tuple[int, ...]


def mean(results: Sequence[Result], domain: str | None = None, round: int | None = None) -> Mean | None:
    """Accuracy over clients and seeds, of one domain or all, after a round or the last; nothing if not run."""
    if not results:
        return None
    values = [100 * statistics.fmean(_of_domain(result, domain, round)) for result in results]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), spread, tuple(result.seed for result in results))


def best_rounds(results: Sequence[Result]) -> float | None:
    """The mean over clients and seeds of what each client reached in its own best round; nothing if not run."""
    curves = [[score for score in curve if score is not None] for r in results for curve in zip(*r.curve, strict=True)]
    return 100 * statistics.fmean(max(curve) for curve in curves if curve) if results else None


def _of_domain(result: Result, domain: str | None, round: int | None) -> list[float]:
    scores = zip(result.scores(round), result.domains, strict=True)
    return [score for score, of in scores if score is not None and domain in (None, of)]


def mean_curve(results: Sequence[Result]) -> np.ndarray:
    """Accuracy over clients and seeds after every round, in percent."""
    rows = [[np.mean([a for a in row if a is not None]) for row in result.curve] for result in results]
    return 100 * np.mean(np.array(rows), axis=0)


@dataclass(frozen=True)
class Difference:
    """Of two cells' accuracies in points, paired by seed and client, with its standard error."""

    points: float
    error: float
    seeds: tuple[int, ...]

    @property
    def word(self) -> str:
        """more, less, or no difference beyond two standard errors."""
        if abs(self.points) <= 2 * self.error:
            return "same"
        return "more" if self.points > 0 else "less"

    def __str__(self) -> str:
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return f"{self.points:+.2f} points, standard error {self.error:.2f}, {seeds}"


def difference(
    ours: Sequence[Result],
    others: Sequence[Result],
    round: int | None = None,
    between_seeds: float = 0.0,
    printed: Sequence[Sequence[Result]] = ((), ()),
    domain: str | None = None,
) -> Difference | None:
    """Mean of (ours - others) over all clients, or a domain's, of the seeds that both have; nothing if there are none.

    The standard error has two parts. One is the largest of these: from all pairs of one client and seed as if they were
    independent; between the means of those that share test images, the clients of one domain and seed; between the
    seeds' means; and what differences usually vary by `between_seeds`, for as many seeds as there are, or what either
    side does if it is known to vary more: by its seeds beyond the common one, or by those of the `printed` runs that it
    stands for. The other is what the difference goes up and down by over the last rounds, as one of them is compared. A
    single client's error comes from the size of its test and the rounds around.
    """
    theirs = {result.seed: result for result in others}
    paired = [(result, theirs[result.seed]) for result in ours if result.seed in theirs]
    if not paired:
        return None
    by_seed = [
        [100 * (a - b) for a, b in zip(*(_of_domain(result, domain, round) for result in pair), strict=True)]
        for pair in paired
    ]
    pairs = [value for values in by_seed for value in values]
    sharing = [
        [value for value, place in zip(values, one.domains, strict=True) if place == domain]
        for values, (one, _) in zip(by_seed, paired, strict=True)
        if len(values) == len(one.domains)
        for domain in dict.fromkeys(one.domains)
    ]
    groups = ([[pair] for pair in pairs], sharing, by_seed)
    error = max(_error_of_mean([statistics.fmean(values) for values in group]) for group in groups)
    if len(paired[0][0].domains) == 1:
        variances = [_variance(result, round) for pair in paired for result in pair]
        error = max(error, 100 * math.sqrt(sum(variances)) / len(paired))
    else:
        known = [max(runs, key=len) for runs in zip((ours, others), printed, strict=True)]
        spreads = [_between(runs, round) for runs in known if len(runs) > len(paired) == 1]
        error = max(error, max(between_seeds, *spreads, 0.0) / math.sqrt(len(paired)))
        if round is None:
            error = math.hypot(error, math.sqrt(sum(_between_rounds(*pair, domain) for pair in paired)) / len(paired))
    return Difference(statistics.fmean(pairs), error, tuple(one.seed for one, _ in paired))


def _between(runs: Sequence[Result], round: int | None) -> float:
    """Standard deviation between the means of some seeds, in points."""
    return statistics.stdev(100 * statistics.fmean(result.accuracies(round)) for result in runs)


def _error_of_mean(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _between_rounds(one: Result, other: Result, domain: str | None) -> float:
    """Variance of the difference of two runs' means, in points, over their last rounds; 0 of short runs."""
    if min(one.rounds, other.rounds) < ROUNDS:
        return 0.0
    means = [
        [100 * statistics.fmean(_of_domain(result, domain, result.rounds - back)) for back in range(ROUNDS)]
        for result in (one, other)
    ]
    return statistics.variance(a - b for a, b in zip(*means, strict=True))


def _variance(result: Result, round: int | None) -> float:
    """Of a single client's accuracy: it is measured on so many images, and as a mean over some rounds."""
    (accuracy,) = result.accuracies(round)
    (total,) = result.record["clients"]["scored"]
    if round is None:
        last = result.last_scores
        between = statistics.variance(last) / len(last) if len(last) > 1 else 0.0
    else:
        between = _unevenness(result, round)
    return accuracy * (1 - accuracy) / total + between


def _unevenness(result: Result, round: int) -> float:
    """Variance of a single client's accuracy around a steady rise, from the rounds around one.

    Three independent values of variance s lie off a straight line by something with a variance of 1.5 s.
    """
    scores = [score for row in result.curve[max(0, round - 4) : round + 3] for score in row if score is not None]
    bends = [b - (a + c) / 2 for a, b, c in zip(scores, scores[1:], scores[2:], strict=False)]
    return statistics.fmean(bend**2 for bend in bends) / 1.5 if bends else 0.0


def bytes_sent(results: Sequence[Result]) -> np.ndarray:
    """Bytes sent both ways until the end of each round, as serialised, the mean over seeds."""
    rounds = [
        np.add(result.record["bytes"]["up_per_round"], result.record["bytes"]["down_per_round"]) for result in results
    ]
    return np.cumsum(np.mean(rounds, axis=0))


def total_bytes(results: Sequence[Result]) -> float | None:
    """Bytes of a run as serialised, both ways, the mean over seeds."""
    return statistics.fmean(r.record["bytes"]["up"] + r.record["bytes"]["down"] for r in results) if results else None


def formula_gigabytes(results: Sequence[Result], convention: str = "a") -> float | None:
    """Gigabytes of a run by the paper's formula."""
    return statistics.fmean(r.record["bytes"][f"formula_{convention}"] for r in results) / 1e9 if results else None


def model_millions(result: Result, round: int | None = None) -> float | None:
    """Millions of numbers in a factorised model when small entries of mu count as zero (the paper's count)."""
    factors = result.record.get("factors")
    if not factors:
        return None
    kept = factors["mu_kept"][-1 if round is None else round - 1] if "mu_kept" in factors else 0
    return (factors["numbers"]["u"] + factors["numbers"]["v"] + kept) / 1e6
