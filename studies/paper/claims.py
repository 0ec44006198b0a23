"""The ledger of claims: the paper's claims, the checks of them that our cells allow, and the verdicts that follow.

A check is decided by a difference of more than three standard errors (p below 0.27%); with more than two (p below
4.55%) it is leaning, which decides nothing. A check against a baseline that we do not reproduce is not testable. A
check of a run whose method did not activate, such as Clustered-FL without a split, counts for no claim. A claim holds
if all testable checks that were run come out as claimed and these are at least half of all. It holds in part if as
many come out as claimed as contrary, or more. Otherwise it does not hold, is leaning or undecided if no check
decides, or is not tested if none was run. A claim about every method or case does not hold as soon as one check comes
out contrary, and never holds in part. Its checks are decided only if they are significant at 5% by Holm's procedure
over them. Each kind of check in claims.toml is a function of that name here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from factorized_fl.core.seeds import numpy_rng
from factorized_fl.methods import METHODS
from factorized_fl.methods.factorized import Factorized
from factorized_fl.results.statistic import Estimate, holm
from studies.paper.cells import (
    ALL_EPOCHS,
    ROUND_AFTER,
    Key,
    as_key,
    expand,
    published,
    published_mean,
    read_data,
    title,
)
from studies.paper.findings import CLOSE
from studies.paper.permutation import nearest_share, permutation_p_value, within_excess
from studies.paper.table import Compared, Table, bytes_by_round, mean_curve, mean_of, reconstructed

AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN = "as claimed", "not as claimed", "undecided", "not run"
LEANING = {AS_CLAIMED: "leaning as claimed", CONTRARY: "leaning to the contrary"}
NOT_TESTABLE, INACTIVE = "not testable: baseline not reproduced", "did not activate"
OUTCOMES = AS_CLAIMED, CONTRARY, *LEANING.values(), UNDECIDED, NOT_TESTABLE, NOT_RUN, INACTIVE
DECIDED, LEANS = 0.0027, 0.0455  # p-values of three and of two standard errors where the error is known well
MOST = 0.5  # share of the nearest clients from which on clients are grouped
BY_CHANCE = 0.05  # p-value below which a similarity is beyond chance
ON_THE_WAY = (0.7, 0.8, 0.9)  # shares of the final accuracy at which convergence is timed
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One comparison: what it compares, its outcome, and the figures."""

    text: str
    outcome: str = NOT_RUN
    figures: str = ""
    published: bool | None = None  # whether the published numbers come out as claimed, where both are published
    p: float | None = None  # of no difference from the margin, where the check has an error
    effect: Estimate | None = None  # the difference in points, where the check has an error
    sign: int = 1  # -1 if the claim says that the difference is negative


def _decided(text: str, passed: bool, figures: str) -> Check:
    return Check(text, AS_CLAIMED if passed else CONTRARY, figures)


def _judged(text: str, compared: Compared | None, relation: str, margin: float = 0.0) -> Check:
    """Return whether a difference is more or less than the margin; undecided while its error allows for both."""
    if compared is None:
        return Check(text)
    threshold, gap = (margin if relation == "more" else -margin), compared.difference
    p = replace(gap, value=gap.value - threshold).p
    sign = 1 if relation == "more" else -1
    if p > LEANS:
        return Check(text, UNDECIDED, str(compared), p=p, effect=gap, sign=sign)
    outcome = AS_CLAIMED if sign * (gap.value - threshold) > 0 else CONTRARY
    outcome = outcome if p <= DECIDED else LEANING[outcome]
    return Check(text, outcome, str(compared), p=p, effect=gap, sign=sign)


def _reproduced(table: Table, key: Key, printed: Sequence[float] | None) -> bool:
    """Return whether a baseline's mean is near the published one; True for our subject, factorised methods."""
    method = METHODS.get(key[2].partition("+")[0])
    if printed is None or (method and issubclass(method, Factorized)):
        return True
    mean = mean_of(table.of(*key))
    return mean is None or abs(mean.value - printed[0]) <= CLOSE


def accuracy(table: Table, fields: Fields) -> Check:
    """Compare two cells by their accuracy, beside the same difference of the published numbers."""
    one, other = (as_key(fields[name]) for name in ("one", "other"))
    relation, margin, domain = fields.get("relation", "more"), fields.get("margin", 0.0), fields.get("domain")
    after = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)]
    if idle := next((key for key in (one, other) if any(run.inactive for run in table.of(*key))), None):
        return Check(fields["text"], INACTIVE, f"{title(idle[2])} did not activate")
    check = _judged(fields["text"], table.compare(one, other, after, domain), relation, margin)
    papers = [published(f"domains/{key[2]}/{domain}") if domain else published_mean(*key) for key in (one, other)]
    if papers[0] is None or papers[1] is None:
        return check
    gap = papers[0][0] - papers[1][0]
    figures = "" if check.outcome == NOT_RUN else f"{check.figures}; paper {gap:+.2f}"
    # The paper has one number for a single client, which counts for the last round only.
    passed = None if after else (gap if relation == "more" else -gap) > margin
    means = [published_mean(*key) for key in (one, other)]
    known = after or all(_reproduced(table, *pair) for pair in zip((one, other), means, strict=True))
    outcome = check.outcome if known or check.outcome == NOT_RUN else NOT_TESTABLE
    return replace(check, outcome=outcome, figures=figures, published=passed)


def number(table: Table, fields: Fields) -> Check:
    """Compare the first two of some quantities, which have no error, or any of them with a published one."""
    pairs = [quantity.split(" | ") for quantity in fields["quantities"]]
    after, paper = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)], published(fields.get("paper", "-"))
    means = [mean_of(table.runs(cell), quantity, after) for cell, quantity in pairs]
    values = [mean.value for mean in means if mean]
    if len(values) < len(pairs):
        return Check(fields["text"])
    if paper:
        passed = any(abs(value / paper - 1) <= fields["tolerance"] for value in values)
    else:
        passed = values[0] < values[1] if fields.get("relation") == "less" else values[0] > values[1]
    return _decided(fields["text"], passed, fields["form"].format(*values, paper=paper))


def better_for_its_bytes(table: Table, fields: Fields) -> Check:
    """Compare the last accuracy of one cell with that of the other when it had sent as many bytes, both ways."""
    one, other = table.runs(fields["one"]), table.runs(fields["other"])
    budget = fmean(run.record["bytes"]["up"] + run.record["bytes"]["down"] for run in one)
    rounds = int((bytes_by_round(other) <= budget).sum())
    ours, theirs = mean_curve(one)[-1], mean_curve(other)[rounds - 1] if rounds else 0.0
    return _decided(fields["text"], ours > theirs, f"{ours:.1f}% against {theirs:.1f}% after {rounds} rounds")


def converges_faster(table: Table, fields: Fields) -> Check:
    """Compare the rounds to several shares of the lower of two final accuracies; undecided if these disagree."""
    curves = [mean_curve(table.runs(fields[name])) for name in ("one", "other")]
    goals = [share * min(curve[-1] for curve in curves) for share in ON_THE_WAY]
    rounds = [[int((curve >= goal).argmax()) + 1 for curve in curves] for goal in goals]
    figures = ", ".join(f"{a} against {b} to {goal:.1f}%" for (a, b), goal in zip(rounds, goals, strict=True))
    faster = {a < b for a, b in rounds}
    if len(faster) > 1:
        return Check(fields["text"], UNDECIDED, figures)
    return _decided(fields["text"], True in faster, figures)


def factors_by_domain(table: Table, fields: Fields) -> Check:
    """Test in the last round whether clients of one domain are alike in a factor beyond chance.

    By the `mean` cosine within a domain and between domains; by whether `most` of the nearest clients are of the
    own domain; or by whether they are no more often than by `chance`.
    """
    runs, factor, by = table.runs(fields["cell"]), fields["factor"], fields["by"]
    matrices = [np.array(list(run.record["factors"][factor]["matrices"].values())[-1]) for run in runs]
    samples = [(m, run.domains, numpy_rng(run.seed, "deals", factor)) for m, run in zip(matrices, runs, strict=True)]
    p = permutation_p_value(samples, within_excess if by == "mean" else nearest_share)
    words = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    found = {name: mean_of(runs, f"factors/{factor}/{name}/-1") for name in ("same", "other", "found")}
    same, other, share = (mean.value if mean else 0.0 for mean in found.values())
    if by == "mean":
        if BY_CHANCE <= p <= 1 - BY_CHANCE:
            return Check(fields["text"], UNDECIDED, f"{same:.4f} against {other:.4f}, {words}")
        return _decided(fields["text"], p < BY_CHANCE, f"{same:.4f} against {other:.4f}, {words}")
    expected = (fmean(map(runs[0].domains.count, runs[0].domains)) - 1) / (len(runs[0].domains) - 1)
    passed = share > MOST if by == "most" else p > BY_CHANCE
    return _decided(fields["text"], passed, f"{share:.3f}, by chance {expected:.3f}, {words}")


def nearest_in_size(table: Table, fields: Fields) -> Check:
    """Compare the network whose size is nearest to a share of the regular network's with another cell."""
    after = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)]
    sizes = {name: size.value for name in fields["networks"] if (size := mean_of(table.runs(name), "millions", after))}
    if not sizes:
        return Check(fields["text"])
    nearest = min(sizes, key=lambda name: abs(sizes[name] - fields["share"] * published("sparsity/regular/millions")))
    value = nearest.partition("lambda=")[2].partition(",")[0] or "0.0005"
    text = fields["form"].format(title(as_key(nearest)[2]), sizes[nearest], value) + fields["ending_text"]
    compared = table.compare(as_key(nearest), as_key(fields["against"]), after)
    return _judged(text, compared, "more", fields.get("margin", 0.0))


def in_size_range(table: Table, fields: Fields) -> list[Check]:
    """Compare the networks with a share of the regular size in a range, or not run yet, with other cells."""
    least, most = (share * published("sparsity/regular/millions") for share in fields["range"])
    baselines = {name: table.runs(name) for name in fields.get("best_of", ()) if table.runs(name)}
    best = [max(baselines, key=lambda name: mean_curve(baselines[name])[-1])] if baselines else []
    checks = []
    for name in fields["networks"]:
        size = mean_of(table.runs(name), "millions")
        if size and not least < size.value <= most:
            continue
        without = "no-l1" in name and size  # also compared with a network without L1's gradient
        for other in dict.fromkeys([fields["without_l1" if without else "against"], *best]):
            sized = title(as_key(name)[2]) + (f", {size.value:.3f} M" if size else "")
            text = f"{sized}, minus {title(as_key(other)[2])}, domains"
            compared = table.compare(as_key(name), as_key(other))
            checks.append(_judged(text, compared, fields.get("relation", "more"), fields.get("margin", 0.0)))
    return checks


_KINDS = (accuracy, number, better_for_its_bytes, converges_faster, factors_by_domain, nearest_in_size, in_size_range)
KINDS: dict[str, Callable[[Table, Fields], Check | list[Check]]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True)
class Claim:
    """One claim and the blocks of checks that test it."""

    name: str
    statement: str
    checks: Sequence[Mapping[str, Any]] = ()
    rejudged: bool = False  # once more by the reconstructed runs, which may decide it otherwise
    every: bool = False  # it is about every method or case: one contrary check refutes it

    def test(self, table: Table) -> Iterator[Check]:
        """Yield all checks, those of cells that were not run included."""
        for fields in (fields for block in self.checks for fields in expand(block)):
            needed = [fields[name] for name in ("one", "other", "cell") if name in fields]
            ran = fields["kind"] == "accuracy" or all(map(table.runs, needed))
            found = KINDS[fields["kind"]](table, fields) if ran else Check(fields["text"])
            yield from found if isinstance(found, list) else [found]


@dataclass(frozen=True)
class Judged:
    """A claim with its checks and the verdict."""

    claim: Claim
    checks: tuple[Check, ...]

    @property
    def testable(self) -> list[Check]:
        """The checks that were run against baselines that we reproduce."""
        return [check for check in self.ran if check.outcome != NOT_TESTABLE]

    @property
    def ran(self) -> list[Check]:
        """The checks whose cells were run."""
        return [check for check in self.checks if check.outcome not in (NOT_RUN, INACTIVE)]

    def number(self, outcome: str) -> int:
        """Return how many checks have an outcome."""
        return sum(check.outcome == outcome for check in self.checks)

    @property
    def count(self) -> str:
        """The number of checks with each outcome."""
        return ", ".join(f"{number} {outcome}" for outcome in OUTCOMES if (number := self.number(outcome)))

    @property
    def share(self) -> str:
        """How many of the checks that were run came out as claimed, and how many were not run."""
        left = [f", {number} {outcome}" for outcome in (NOT_RUN, INACTIVE) if (number := self.number(outcome))]
        return f"{self.number(AS_CLAIMED)} of {len(self.ran)} checks" + "".join(left)

    @property
    def published(self) -> str:
        """For how many checks the published numbers come out as claimed; empty if there are none."""
        known = [check.published for check in self.checks if check.published is not None]
        return f"{sum(known)} of {len(known)}" if known else ""

    @property
    def verdict(self) -> str:
        """The verdict by the rules above."""
        if not self.ran:
            return "not tested"
        if not self.testable:
            return NOT_TESTABLE
        claimed, contrary = self.number(AS_CLAIMED), self.number(CONTRARY)
        if claimed == len(self.testable) and 2 * claimed >= len(self.checks) - self.number(INACTIVE):
            return "holds"
        if not claimed and not contrary:
            leaning = [outcome for outcome in LEANING.values() if self.number(outcome)]
            return leaning[0] if len(leaning) == 1 else "undecided"
        if not contrary and (self.claim.every or claimed == len(self.testable)):
            return "undecided"
        return "holds in part" if claimed >= contrary and not self.claim.every else "does not hold"

    @property
    def words(self) -> str:
        """The verdict, and whether some checks were not run yet."""
        return f"{self.verdict} so far" if self.ran and self.number(NOT_RUN) else self.verdict


CLAIMS, SUPPOSED = (
    tuple(Claim(**table) for table in read_data("claims.toml")[kind]) for kind in ("claims", "supposed")
)


def judge(table: Table, claims: Sequence[Claim] = CLAIMS) -> list[Judged]:
    """Judge the paper's claims, or others, by the finished runs."""
    return [Judged(claim, tuple(_corrected(list(claim.test(table)), claim.every))) for claim in claims]


def _corrected(checks: list[Check], every: bool) -> list[Check]:
    """Return the checks of a claim about every case with those leaning that Holm's procedure does not decide."""
    if not every:
        return checks
    testable = {at: c.p for at, c in enumerate(checks) if c.p is not None and c.outcome not in (NOT_RUN, NOT_TESTABLE)}
    adjusted = holm(testable)
    return [
        replace(check, outcome=LEANING[check.outcome])
        if adjusted.get(at, 0.0) > BY_CHANCE and check.outcome in LEANING
        else check
        for at, check in enumerate(checks)
    ]


def judge_reconstructed(table: Table) -> list[Judged]:
    """Judge the claims that reconstructed runs may decide otherwise, by those runs."""
    return judge(reconstructed(table), [claim for claim in CLAIMS if claim.rejudged])
