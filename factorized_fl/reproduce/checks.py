"""What a claim's tests are made of: checks, each of which compares something with what the paper says of it."""

from dataclasses import dataclass, replace

from factorized_fl.reproduce.collection import Collection, Difference, Key, difference
from factorized_fl.reproduce.published import published_mean

AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN = "as claimed", "not as claimed", "undecided", "not run"
UNHURT = 1.0  # points that count as no loss


@dataclass(frozen=True)
class Check:
    """One comparison: what it compares, what came out, and the figures."""

    text: str
    outcome: str = NOT_RUN
    figures: str = ""
    published: bool | None = None  # whether the published numbers come out as claimed, where both are published


def decided(text: str, passed: bool, figures: str) -> Check:
    """A check that came out one way or the other."""
    return Check(text, AS_CLAIMED if passed else CONTRARY, figures)


def compared(
    found: Collection, text: str, one: Key, other: Key, word: str, least: float = 0.0, round: int | None = None
) -> Check:
    """Whether the first cell's accuracy is `word` ("more" or "less") than the other's, by at least so many points.

    Beside ours stands the same difference of the published numbers, if both were published.
    """
    printed = [found.printed.get(key, ()) for key in (one, other)]
    gap = difference(found.of(*one), found.of(*other), round, found.between_seeds, printed)
    check = judged(text, gap, word, least)
    papers = [paper[0] for key in (one, other) if (paper := published_mean(*key))]
    return beside(check, papers[0] - papers[1], word, least) if len(papers) == 2 else check


def beside(check: Check, gap: float, word: str, least: float = 0.0) -> Check:
    """A check with the difference of the published numbers beside ours."""
    figures = "" if check.outcome == NOT_RUN else f"{check.figures}; paper {gap:+.2f}"
    return replace(check, figures=figures, published=(gap if word == "more" else -gap) > least)


def judged(text: str, gap: Difference | None, word: str, least: float = 0.0) -> Check:
    """The same of a difference; it decides nothing while its error allows for both."""
    if gap is None:
        return Check(text)
    towards, margin = gap.points if word == "more" else -gap.points, 2 * gap.error
    if towards - margin <= least <= towards + margin:
        return Check(text, UNDECIDED, str(gap))
    return decided(text, towards > least, str(gap))
