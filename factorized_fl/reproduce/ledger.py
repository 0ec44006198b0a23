"""The ledger of claims as the page shows it, and what it comes to in short."""

from collections import Counter
from collections.abc import Sequence

from factorized_fl.reproduce import prose
from factorized_fl.reproduce.claims import VERDICTS, Judged
from factorized_fl.reproduce.collection import Collection
from factorized_fl.reproduce.differences import compared, far_from_paper, within_draws
from factorized_fl.reproduce.markdown import folded, plain, table
from factorized_fl.reproduce.prose import CLOSE
from factorized_fl.reproduce.rows import ALL_EPOCHS


def in_short(found: Collection, judged: Sequence[Judged], rejudged: Sequence[Judged]) -> list[str]:
    """How much agrees and which claims hold, before how it was done."""
    parts = [_agreement(found)]
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
        f"{len(both)} of them were judged once more by runs *as reconstructed*, that is as the published ones seem to "
        f"have been: as printed {_verdicts([one for one, _ in both])}; as reconstructed "
        f"{_verdicts([other for _, other in both])}. In brackets, how many checks came out as claimed:"
    )
    lines = [
        [plain(one.claim.statement), *(f"{each.words} ({each.share})" for each in (one, other))] for one, other in both
    ]
    ledger = table(("claim", "as printed", "as reconstructed"), lines)
    return [*parts, told, again, ledger, prose.RECONSTRUCTED]


def _agreement(found: Collection) -> str:
    """How many of the published means were run, how many are near, and how many something brings near."""
    rows = [row for row in compared(found) if row.paper is not None]
    gaps: dict[str, list[float]] = {}
    for row in rows:
        if row.difference is not None:
            where = f"of single clients, after {ALL_EPOCHS}" if row.what == "architectures" else "of Table 1"
            gaps.setdefault(where, []).append(abs(row.difference))
    if not gaps:
        return "In short: none of the published means was run yet."
    near = [f"{sum(gap <= CLOSE for gap in some)} of {len(some)} {where}" for where, some in gaps.items()]
    far, left = far_from_paper(found), sum(row.ours is None for row in rows)
    once = sum(len(row.seeds) == 1 for row in rows)
    told = (
        f"In short: we ran {sum(map(len, gaps.values()))} of {len(rows)} published means, {once} of them with one seed "
        f"(the paper has three trials); {left} were not run. Within {CLOSE:g} points of ours are {' and '.join(near)}."
    )
    if far:
        brought = sum(bool(one.near) for one in far)
        told += (
            f" Of the other {len(far)}, {brought} come as near with a departure of the authors' code or a choice that "
            "the papers leave open: a single run each, the best of a few, found with the published number in view "
            f"([one by one](#where-we-differ-by-more-than-{CLOSE * 10:.0f}-points))."
        )
    if drawn := within_draws(found):
        told += f" {drawn.removesuffix('.')} ([how that is predicted](#other-draws))."
    return told


def _verdicts(judged: Sequence[Judged]) -> str:
    """How many claims came out how."""
    counts = Counter(one.verdict for one in judged)
    return ", ".join(f"{number} {words[number > 1]}" for name, words in VERDICTS.items() if (number := counts[name]))


def claims(judged: Sequence[Judged], rejudged: Sequence[Judged], supposed: Sequence[Judged]) -> list[str]:
    """All verdicts, and every check that they follow from."""
    return [
        prose.CLAIMS,
        _ledger(judged),
        prose.SUPPOSED,
        _ledger(supposed),
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
