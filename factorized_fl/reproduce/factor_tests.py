"""Tests of what the paper says of u and v, and of updates that drift apart."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.checks import UNDECIDED, Check, decided
from factorized_fl.reproduce.collection import Collection
from factorized_fl.reproduce.grouping import chance, closer_within, nearest_of_own
from factorized_fl.reproduce.measures import same_domain
from factorized_fl.reproduce.names import variant_title

MOST = 0.5  # of the nearest, for clients to be grouped
BY_CHANCE = 0.05  # what random domains have as rarely as this is not by chance
LAST = 10  # epochs


def groups_by_domain(found: Collection) -> Iterator[Check]:
    """Whether most of those with the most similar v are of one's own domain, in the last round."""

    def check(text: str, results: Sequence[Result]) -> Check:
        share, _, figures = _nearest(results, "v")
        return decided(text, share > MOST, figures)

    return _of_each(found, "v: most of the nearest are of one's own domain", check)


def no_groups(found: Collection) -> Iterator[Check]:
    """Whether those with the most similar u are of one's own domain no more often than by chance."""

    def check(text: str, results: Sequence[Result]) -> Check:
        _, probability, figures = _nearest(results, "u")
        return decided(text, probability > BY_CHANCE, figures)

    return _of_each(found, "u: the nearest are of one's own domain no more often than by chance", check)


def more_alike_within(found: Collection) -> Iterator[Check]:
    """Mean cosines of v within a domain above those between domains, by more than chance, in the last round."""

    def check(text: str, results: Sequence[Result]) -> Check:
        within, between = (_last(results, "v", whose) for whose in ("same", "other"))
        probability = chance(results, "v", closer_within)
        figures = f"{within:.4f} against {between:.4f}, {_p(probability)}"
        if BY_CHANCE <= probability <= 1 - BY_CHANCE:
            return Check(text, UNDECIDED, figures)
        return decided(text, probability < BY_CHANCE, figures)

    return _of_each(found, "mean cosine of v higher within a domain", check)


def u_more_alike(found: Collection) -> Iterator[Check]:
    """The mean cosine of u between domains above that of v in the last round."""

    def check(text: str, results: Sequence[Result]) -> Check:
        u, v = (_last(results, kind, "other") for kind in ("u", "v"))
        return decided(text, u > v, f"{u:.4f} against {v:.4f}")

    return _of_each(found, "mean cosine of u above that of v", check)


def _of_each(found: Collection, text: str, check: Callable[[str, Sequence[Result]], Check]) -> Iterator[Check]:
    """One check for each layout whose u and v are looked at: the paper's and those of the authors' code."""
    named = [("the paper's layout", found.of("domains", "domains", "factorized-fl"))]
    for row in ("factorized-fl+released", "factorized-fl+released-layout"):
        named.append((variant_title(row), found.of("similarity", "similarity", row)))
    for name, results in named:
        yield check(f"{text}, {name}", results) if results else Check(f"{text}, {name}")


def _last(results: Sequence[Result], kind: str, whose: str) -> float:
    return fmean(result.record["factors"][kind][whose][-1] for result in results)


def _nearest(results: Sequence[Result], kind: str) -> tuple[float, float, str]:
    """How many of the nearest are of one's own domain, how rarely random domains have as many, and both in words."""
    share, probability = _last(results, kind, "found"), chance(results, kind, nearest_of_own)
    same = same_domain(results[0].domains)
    expected = float(same.double().sum(1).mean()) / (len(same) - 1)
    return share, probability, f"{share:.3f}, by chance {expected:.3f}, {_p(probability)}"


def _p(probability: float) -> str:
    return "p < 0.001" if probability < 0.001 else f"p = {probability:.3f}"


def farther_apart(found: Collection) -> Iterator[Check]:
    """Each kind of heterogeneity drives the updates further apart than the one before."""
    for nearer, farther in ((0, 1), (1, 2)):
        names = ("partition 2", "partition 2, permuted", "CIFAR-10")
        text = f"updates on {names[farther]} farther from partition 1's than those on {names[nearer]}"
        values = [record["dense"]["body"]["total"][-1] for record in found.heterogeneity]
        if not values:
            yield Check(text)
            continue
        means = [sum(value[index] for value in values) / len(values) for index in (nearer, farther)]
        figures = f"{means[1]:.3f} against {means[0]:.3f}"
        yield decided(text, all(value[farther] > value[nearer] for value in values), figures)


def averages_degrade(found: Collection) -> Iterator[Check]:
    """Accuracy of averaged models on partition 1."""
    for party in ("partition 2, permuted", "CIFAR-10"):
        text = f"averages with {party} worse on partition 1 than averages with partition 2"
        pairs = [
            [
                sum(row[1] for row in record["averaged"][name]["all"]) / record["tests"]
                for name in (party, "partition 2")
            ]
            for record in found.heterogeneity
        ]
        rounds = [len(record["alone"]) for record in found.heterogeneity]
        if not pairs:
            yield Check(text)
            continue
        shares = [[100 * value / count for value in pair] for pair, count in zip(pairs, rounds, strict=True)]
        means = [sum(column) / len(shares) for column in zip(*shares, strict=True)]
        yield decided(text, all(worse < better for worse, better in pairs), f"{means[0]:.1f}% against {means[1]:.1f}%")


def u_comes_closer(found: Collection) -> Iterator[Check]:
    """The last epochs' updates against the first's, of models whose u is averaged between epochs, as in the paper."""
    for party in ("partition 2, permuted", "CIFAR-10"):
        for kind, text in (("u", "u comes closer"), ("v", "v stays farther apart than u")):
            text = f"{text}, {party}"
            runs: list[dict[str, Any]] = [record["factorised_together"][party] for record in found.heterogeneity]
            if not runs:
                yield Check(text)
                continue
            first = fmean(run["u"]["epoch"][0][0] for run in runs)
            u, v = (fmean(row[0] for run in runs for row in run[kind]["epoch"][-LAST:]) for kind in ("u", "v"))
            if kind == "u":
                since = fmean(run["u"]["total"][-1][0] for run in runs)
                figures = f"{first:.3f} in the first epoch, {u:.3f} in the last {LAST}; since the start {since:.3f}"
                yield decided(text, u < first, figures)
            else:
                yield decided(text, v > u, f"{v:.3f} against {u:.3f} in the last {LAST}")
