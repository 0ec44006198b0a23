"""The ledger of claims as the page shows it, and what it comes to in short."""

from collections import Counter
from collections.abc import Sequence

from factorized_fl.reproduce import prose
from factorized_fl.reproduce.claims import VERDICTS, Judged
from factorized_fl.reproduce.collection import Collection
from factorized_fl.reproduce.departures import origin, reconstructs
from factorized_fl.reproduce.differences import compared, far_from_paper
from factorized_fl.reproduce.findings import findings
from factorized_fl.reproduce.markdown import folded, plain, table
from factorized_fl.reproduce.prose import CLOSE
from factorized_fl.reproduce.rows import ALL_EPOCHS, FEW_EPOCHS, rows_of
from factorized_fl.reproduce.studies import STUDIES


def in_short(found: Collection, judged: Sequence[Judged], rejudged: Sequence[Judged]) -> list[str]:
    """How much agrees and which claims hold, before how it was done."""
    parts = ["## In short", *findings(found), _agreement(found)]
    both = [
        (one, other)
        for one in judged
        for other in rejudged
        if one.claim is other.claim and not set(other.ran) <= set(one.ran)
    ]
    told = (
        f"Of {len(judged)} [claims of the paper](#claims), as far as they are tested, with methods as the papers print "
        f"them and what they leave open chosen on validation images, {_verdicts(judged)}."
    )
    if not both:
        return [*parts, told]
    again = (
        f"{len(both)} of them were judged once more by runs *as reconstructed*, with the variants that come nearest to "
        f"the published numbers: as printed {_verdicts([one for one, _ in both])}; as reconstructed "
        f"{_verdicts([other for _, other in both])}. In brackets, how many checks came out as claimed:"
    )
    lines = [
        [plain(one.claim.statement), *(f"{each.words} ({each.share})" for each in (one, other))] for one, other in both
    ]
    ledger = table(("claim", "as printed", "as reconstructed"), lines)
    return [*parts, told, again, ledger, f"{prose.RECONSTRUCTED} {_how_near(found)}"]


def _how_near(found: Collection) -> str:
    """How many means of the variants that stand for others are near the paper's, with unequal shares and without."""
    near: dict[str, list[bool]] = {"equal": [], "non-IID": []}
    for cell, row in zip(STUDIES["departures"].shown, rows_of("departures", found), strict=True):
        if reconstructs(cell) and row.difference is not None and origin(cell)[0] != "architectures":
            near["non-IID" if row.setting.endswith("non-iid") else "equal"].append(abs(row.difference) <= CLOSE)
    told = " and ".join(f"{sum(some)} of {len(some)} with {kind} shares" for kind, some in near.items())
    return f"Of their means in Table 1, {told} are within {CLOSE:g} points of the paper's."


def _agreement(found: Collection) -> str:
    """How many of the published means were run, how many are near, and how many something brings near."""
    rows = [row for row in compared(found) if row.paper is not None]
    short = [row for row in rows_of("architectures", found) if row.setting.endswith(FEW_EPOCHS)]
    gaps: dict[str, list[float]] = {}
    for row in rows:
        if row.difference is not None:
            where = f"of single clients after {ALL_EPOCHS}" if row.what == "architectures" else "of Table 1"
            gaps.setdefault(where, []).append(abs(row.difference))
    if not gaps:
        return "None of the published means was run yet."
    near = [f"{sum(gap <= CLOSE for gap in some)} of {len(some)} {where}" for where, some in gaps.items()]
    if early := [abs(row.difference) <= CLOSE for row in short if row.difference is not None]:
        near.append(f"{sum(early)} of {len(early)} of them after the {FEW_EPOCHS} that the paper states")
    far, left = far_from_paper(found), Counter(row.what for row in rows if row.ours is None)
    missing = ", ".join(f"{number} of {what}" for what, number in left.items())
    once = sum(len(row.seeds) == 1 for row in rows)
    told = (
        f"We ran {sum(map(len, gaps.values()))} of {len(rows)} published means, {once} of them with one seed (the "
        f"paper has three trials); not run were {missing or 'none'}. Single domains and the sparsity table are not "
        f"counted here. Within {CLOSE:g} points of ours are {', '.join(near)}."
    )
    if far:
        brought = sum(bool(one.near) for one in far)
        told += (
            f" Of the other {len(far)}, {brought} come as near with a departure of the authors' code or a choice that "
            "the papers leave open: a single run each, the best of a few, found with the published number in view "
            f"([one by one](#where-we-differ-by-more-than-{CLOSE * 10:.0f}-points))."
        )
    return told


def _verdicts(judged: Sequence[Judged]) -> str:
    """How many claims came out how."""
    counts = Counter(one.verdict for one in judged)
    return ", ".join(f"{number} {words[number > 1]}" for name, words in VERDICTS.items() if (number := counts[name]))


def verdicts(judged: Sequence[Judged], supposed: Sequence[Judged]) -> list[str]:
    """All verdicts: on what the paper says, and on what we suppose."""
    return [prose.CLAIMS, _ledger(judged), prose.SUPPOSED, _ledger(supposed)]


def checks(
    found: Collection, judged: Sequence[Judged], rejudged: Sequence[Judged], supposed: Sequence[Judged]
) -> list[str]:
    """By which rules, and every check that the verdicts follow from."""
    return [
        prose.RULES.format(between_seeds=found.between_seeds),
        "### Every check",
        *_checks(judged),
        "### As reconstructed",
        prose.REJUDGED,
        *_checks(rejudged),
        "### What we suppose",
        *_checks(supposed),
    ]


def _ledger(judged: Sequence[Judged]) -> str:
    lines = [[plain(one.claim.statement), f"**{one.words}**", one.count, one.published or "-"] for one in judged]
    return table(("claim", "verdict", "checks", "by the paper's numbers"), lines)


def _checks(judged: Sequence[Judged]) -> list[str]:
    parts = []
    for one in judged:
        lines = [[plain(check.text), check.outcome, check.figures] for check in one.ran]
        if lines:
            parts.append(folded(one.claim.statement, table(("check", "outcome", "figures"), lines)))
    return parts or ["None was run."]
