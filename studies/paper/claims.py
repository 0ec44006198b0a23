"""The ledger of claims: what the paper says, the checks of it that our cells allow, and the verdict that follows.

A claim holds if all checks that were run come out as claimed and these are at least half of all. It holds in part if at
least as many come out as claimed as contrary. Otherwise it does not hold, is undecided if no check decides, or is not
tested if none was run. A claim about every method or case does not hold as soon as one check comes out contrary, and
never holds in part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.paper.cells import expand, read_data
from studies.paper.checks import AS_CLAIMED, CONTRARY, NOT_RUN, OUTCOMES, Check, run_check
from studies.paper.table import Table, reconstructed


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
        for block in self.checks:
            for fields in expand(block):
                yield from run_check(table, fields)


@dataclass(frozen=True)
class Judged:
    """A claim with its checks and the verdict."""

    claim: Claim
    checks: tuple[Check, ...]

    @property
    def ran(self) -> list[Check]:
        """The checks whose cells were run."""
        return [check for check in self.checks if check.outcome != NOT_RUN]

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
        left = self.number(NOT_RUN)
        return f"{self.number(AS_CLAIMED)} of {len(self.ran)} checks" + (f", {left} not run" if left else "")

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
        claimed, contrary = self.number(AS_CLAIMED), self.number(CONTRARY)
        if claimed == len(self.ran) and 2 * claimed >= len(self.checks):
            return "holds"
        if not contrary and (self.claim.every or claimed in (0, len(self.ran))):
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
    return [Judged(claim, tuple(claim.test(table))) for claim in claims]


def judge_reconstructed(table: Table) -> list[Judged]:
    """Judge the claims that reconstructed runs may decide otherwise, by those runs."""
    return judge(reconstructed(table), [claim for claim in CLAIMS if claim.rejudged])
