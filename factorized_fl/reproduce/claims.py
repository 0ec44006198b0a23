"""The ledger of claims: what the paper says, the tests of it that our cells allow, and the verdict that follows.

The rule is the same for all claims. A test compares two cells by the mean difference of their accuracies, paired by
seed and client; it comes out as claimed if that difference has the claimed sign and exceeds two standard errors (see
`collection.difference`); within two standard errors it is undecided. A claim holds if all of its tests that were run
come out as claimed and these are at least half of all, and in part if at least as many do as come out contrary; else it
does not hold, is undecided if no test decides, and not tested if none was run. A claim that says "every" or "best" does
not hold as soon as one test comes out contrary, and never holds in part. Claims about accuracies are judged once more,
by the variants that come nearest to the published numbers. What we suppose is judged so, too, apart.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from factorized_fl.reproduce import factor_tests, size_tests, table_tests
from factorized_fl.reproduce.checks import AS_CLAIMED, CONTRARY, NOT_RUN, UNDECIDED, Check
from factorized_fl.reproduce.collection import Collection, reconstructed
from factorized_fl.reproduce.rows import ALL_EPOCHS, FEW_EPOCHS
from factorized_fl.reproduce.studies import LABEL_METHODS
from factorized_fl.reproduce.table_tests import AVERAGING, BASELINES, PERMUTED, STANDARD

SHARP = 5.0  # points that count as a sharp drop
VERDICTS = {  # how each is said of one claim and of several
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "not tested": ("is not tested", "are not tested"),
}


@dataclass(frozen=True)
class Claim:
    """One claim and how to test it."""

    name: str
    statement: str
    tests: Callable[[Collection], Iterator[Check]]
    rejudged: bool = False  # by the variants nearest to the published numbers, which may decide it otherwise
    every: bool = False  # it says so of everybody or everything: one check to the contrary refutes it


@dataclass(frozen=True)
class Judged:
    """A claim with its tests and the verdict."""

    claim: Claim
    tests: tuple[Check, ...]

    @property
    def ran(self) -> list[Check]:
        """The tests whose cells were run."""
        return [check for check in self.tests if check.outcome != NOT_RUN]

    def number(self, outcome: str) -> int:
        """How many checks came out so."""
        return sum(check.outcome == outcome for check in self.tests)

    @property
    def count(self) -> str:
        """How many checks came out how."""
        outcomes = (AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN)
        return ", ".join(f"{number} {outcome}" for outcome in outcomes if (number := self.number(outcome)))

    @property
    def share(self) -> str:
        """How many of those that were run came out as claimed, and how many were not run."""
        left = len(self.tests) - len(self.ran)
        return f"{self.number(AS_CLAIMED)} of {len(self.ran)} checks" + (f", {left} not run" if left else "")

    @property
    def published(self) -> str:
        """Of how many checks the published numbers themselves come out as claimed; nothing if there are none."""
        known = [check.published for check in self.tests if check.published is not None]
        return f"{sum(known)} of {len(known)}" if known else ""

    @property
    def verdict(self) -> str:
        """In the words of the rule."""
        if not self.ran:
            return "not tested"
        claimed, contrary = self.number(AS_CLAIMED), self.number(CONTRARY)
        if claimed == len(self.ran) and 2 * claimed >= len(self.tests):
            return "holds"
        if not contrary and (self.claim.every or claimed in (0, len(self.ran))):
            return "undecided"
        return "holds in part" if claimed >= contrary and not self.claim.every else "does not hold"

    @property
    def words(self) -> str:
        """The verdict, and whether more checks are to come."""
        return f"{self.verdict} so far" if self.ran and len(self.ran) < len(self.tests) else self.verdict


CLAIMS = (
    Claim(
        "permutation-hurts",
        "Permuted labels hurt methods that average.",
        partial(table_tests.permutation, methods=AVERAGING, hurts=True),
        rejudged=True,
    ),
    Claim(
        "below-alone",
        "With permuted labels previous methods fall even below Stand-Alone.",
        partial(
            table_tests.on_labels, settings=PERMUTED, pairs=[(method, "less", "stand-alone") for method in AVERAGING]
        ),
        rejudged=True,
    ),
    Claim(
        "permutation-harmless",
        "Factorized-FL is consistent whether labels are permuted or not.",
        partial(table_tests.permutation, methods=("factorized-fl",), hurts=False),
        rejudged=True,
    ),
    Claim(
        "all-beat-alone",
        "With labels that agree every federated method beats Stand-Alone.",
        partial(
            table_tests.on_labels,
            settings=STANDARD,
            pairs=[(method, "more", "stand-alone") for method in LABEL_METHODS if method != "stand-alone"],
        ),
        rejudged=True,
        every=True,
    ),
    Claim(
        "better-with-permuted-labels",
        "With permuted labels Factorized-FL is better than every previous method.",
        partial(
            table_tests.on_labels, settings=PERMUTED, pairs=[("factorized-fl", "more", method) for method in BASELINES]
        ),
        rejudged=True,
        every=True,
    ),
    Claim(
        "beta-best",
        "Factorized-FL beta is best in every label setting.",
        partial(
            table_tests.on_labels,
            settings=(*STANDARD, *PERMUTED),
            pairs=[("factorized-fl-beta", "more", row) for row in LABEL_METHODS if row != "factorized-fl-beta"],
        ),
        rejudged=True,
        every=True,
    ),
    Claim(
        "averaging-below-alone",
        "Across domains FedAvg and FedProx fall below Stand-Alone.",
        partial(
            table_tests.on_domains,
            pairs=(("fedavg", "less", "stand-alone", 0.0), ("fedprox", "less", "stand-alone", 0.0)),
        ),
    ),
    Claim(
        "best-across-domains",
        "Across domains Factorized-FL is better than every baseline.",
        partial(
            table_tests.on_domains,
            pairs=tuple(("factorized-fl", "more", row, 0.0) for row in BASELINES),
        ),
        rejudged=True,
        every=True,
    ),
    Claim(
        "best-in-each-domain",
        "Factorized-FL is the best in each of the five domains.",
        table_tests.best_in_each_domain,
        rejudged=True,
        every=True,
    ),
    Claim(
        "personalised-above-alone",
        "Across domains Per-FedAvg, pFedPara, FedFOMO and Clustered-FL are slightly better than Stand-Alone.",
        partial(
            table_tests.on_domains,
            pairs=tuple(
                (row, "more", "stand-alone", 0.0) for row in ("per-fedavg", "pfedpara", "fedfomo", "clustered-fl")
            ),
        ),
        rejudged=True,
    ),
    Claim("least-cost", "Across domains Factorized-FL sends the least.", table_tests.least_cost, every=True),
    Claim(
        "for-its-bytes",
        "Across domains Factorized-FL is the most accurate for the bytes that it sends.",
        table_tests.best_for_its_bytes,
        every=True,
    ),
    Claim(
        "faster",
        "Across domains Factorized-FL converges faster than the others.",
        table_tests.converges_faster,
        rejudged=True,
        every=True,
    ),
    Claim(
        "factorised-fedavg",
        "Factorised weights alone improve FedAvg across domains.",
        partial(table_tests.on_domains, pairs=(("factorized-fedavg", "more", "fedavg", 0.0),)),
    ),
    Claim(
        "mu-matters",
        f"Without mu accuracy drops sharply (by {SHARP:g} points or more).",
        partial(table_tests.on_domains, pairs=(("without-mu", "less", "factorized-fedavg", SHARP),)),
    ),
    Claim(
        "matching-matters",
        "Random and worst matching are worse than matching by similarity.",
        partial(
            table_tests.on_domains,
            pairs=tuple(
                (row, "less", best, 0.0)
                for row in ("random-matching", "worst-matching")
                for best in ("factorized-fl", "factorized-fl+three-best")
            ),
        ),
    ),
    Claim("v-alike", "v is more alike between clients of one domain than of two.", factor_tests.more_alike_within),
    Claim("v-groups", "v groups clients by domain.", factor_tests.groups_by_domain),
    Claim("u-does-not", "u does not group clients by domain.", factor_tests.no_groups),
    Claim("u-more-alike", "u is more alike between clients than v.", factor_tests.u_more_alike),
    Claim(
        "layout",
        "F*F x I*O beats I*F x O*F.",
        partial(size_tests.architectures, one=("factorized-fl", ""), other=("mixed-layout", ""), word="more"),
    ),
    Claim(
        "beats-regular",
        "A factorised network beats the regular one, whatever the architecture.",
        partial(size_tests.architectures, one=("factorized-fl", ""), other=("stand-alone", ""), word="more"),
        rejudged=True,
        every=True,
    ),
    Claim(
        "more-layers-help",
        "More fully connected layers help a factorised network.",
        partial(size_tests.more_layers, method="factorized-fl", word="more"),
        rejudged=True,
    ),
    Claim(
        "more-layers-hurt",
        "More fully connected layers hurt a regular network.",
        partial(size_tests.more_layers, method="stand-alone", word="less"),
    ),
    Claim(
        "sizes",
        "The sparsity table's sizes, with an L1 penalty as Eq. 6 has it.",
        partial(size_tests.sizes, l1=True, epochs=(ALL_EPOCHS, FEW_EPOCHS)),
    ),
    Claim(
        "small-and-better",
        "A factorised model beats the regular one even with about 30% fewer parameters.",
        size_tests.small_and_better,
    ),
    Claim(
        "small-on-domains",
        "On the domains Factorized-FL beats the best baseline with 50 to 65% of the parameters.",
        size_tests.small_on_domains,
        every=True,
    ),
    Claim(
        "half-on-domains",
        "There it is competitive with Clustered-FL and FedAvg with half of them.",
        size_tests.half_is_enough,
    ),
    Claim(
        "too-small-on-domains",
        "There its accuracy falls sharply if fewer than half are left.",
        partial(size_tests.too_small_on_domains, least=SHARP),
    ),
    Claim("costs", "The cost column, by the paper's own formula in either convention.", table_tests.costs),
    Claim(
        "heterogeneity",
        "Permuted labels drive updates apart, and another domain even more so.",
        factor_tests.farther_apart,
    ),
    Claim(
        "averages-degrade",
        "Averaging with a model for permuted labels or another domain costs accuracy.",
        factor_tests.averages_degrade,
    ),
    Claim(
        "u-approaches",
        "As federated training goes on u comes closer between data sets while v stays apart.",
        factor_tests.u_comes_closer,
    ),
)

# What we suppose about how the published numbers came about.
SUPPOSED = (
    Claim(
        "sizes-no-gradient",
        f"The sparsity table's sizes are those without L1's gradient, after the {FEW_EPOCHS} that the paper states.",
        partial(size_tests.sizes, l1=False, epochs=(FEW_EPOCHS,)),
    ),
    Claim(
        "sizes-no-gradient-longer",
        f"They are those without L1's gradient after {ALL_EPOCHS}, as many as the clients of Table 1 train.",
        partial(size_tests.sizes, l1=False, epochs=(ALL_EPOCHS,)),
    ),
    Claim(
        "released-layout",
        "The kernel layout of the authors' code gives better models on the domains than the paper's.",
        partial(table_tests.on_domains, pairs=(("factorized-fl+released-layout", "more", "factorized-fl", 0.0),)),
    ),
    Claim(
        "gain-from-others",
        "On the domains clients of Factorized-FL gain from each other, not only from factorised weights.",
        partial(
            table_tests.on_domains,
            pairs=(
                ("factorized-fl", "more", "factorized-fl+alone", 0.0),
                ("factorized-fl+released", "more", "factorized-fl+released+alone", 0.0),
            ),
        ),
    ),
)


def judge(found: Collection, claims: Sequence[Claim] = CLAIMS) -> list[Judged]:
    """The paper's claims, or others, judged by what was run."""
    return [Judged(claim, tuple(claim.tests(found))) for claim in claims]


def judge_reconstructed(found: Collection) -> list[Judged]:
    """The claims that the variants nearest to the published numbers may decide otherwise, judged by those."""
    return judge(reconstructed(found), [claim for claim in CLAIMS if claim.rejudged])
