"""Tests of what the paper says of its Table 1: who is better where, and what it costs."""

from collections.abc import Iterator, Sequence

from factorized_fl.reproduce.checks import UNDECIDED, UNHURT, Check, beside, compared, decided, judged
from factorized_fl.reproduce.choices import DOMAINS
from factorized_fl.reproduce.collection import (
    Collection,
    Key,
    bytes_sent,
    difference,
    formula_gigabytes,
    mean_curve,
    total_bytes,
)
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.published import AVERAGE, published
from factorized_fl.reproduce.studies import DOMAIN_METHODS, STUDIES

LABEL_STUDIES = ("label-cifar10", "label-svhn")
PARTITIONS = ("iid", "non-iid")
STANDARD, PERMUTED = (tuple(f"{labels}-{partition}" for partition in PARTITIONS) for labels in ("standard", "permuted"))
AVERAGING = ("fedavg", "fedprox", "clustered-fl", "per-fedavg", "fedfomo", "pfedpara")
BASELINES = ("stand-alone", *AVERAGING)
ON_THE_WAY = (0.7, 0.8, 0.9)  # of an accuracy, when convergence is timed
COST_TOLERANCE = 0.02


def permutation(found: Collection, methods: tuple[str, ...], hurts: bool) -> Iterator[Check]:
    """Accuracy with permuted labels against that with labels that agree."""
    for what in LABEL_STUDIES:
        for partition in PARTITIONS:
            word, least = ("less", 0.0) if hurts else ("more", -UNHURT)
            for method in methods:
                one, other = ((what, f"{labels}-{partition}", method) for labels in ("permuted", "standard"))
                text = f"{title(method)}, {_data(what)} {partition}: permuted minus standard"
                yield compared(found, text, one, other, word, least)


def on_labels(found: Collection, settings: Sequence[str], pairs: Sequence[tuple[str, str, str]]) -> Iterator[Check]:
    """Pairs of methods in some label settings of both data sets, each with the word that is claimed."""
    for what in LABEL_STUDIES:
        for setting in settings:
            for one, word, other in pairs:
                text = f"{title(one)} minus {title(other)}, {_data(what)} {setting}"
                yield compared(found, text, (what, setting, one), (what, setting, other), word)


def best_in_each_domain(found: Collection) -> Iterator[Check]:
    """Factorized-FL against everybody before it in each of the domains."""
    papers = published()["domains"]
    ours = found.of("domains", "domains", "factorized-fl")
    for place in (column for column in papers["factorized-fl"] if column not in (AVERAGE, "cost")):
        for method in BASELINES:
            theirs = found.of("domains", "domains", method)
            gap = difference(ours, theirs, between_seeds=found.between_seeds, domain=place)
            check = judged(f"Factorized-FL minus {title(method)}, {place}", gap, "more")
            yield beside(check, papers["factorized-fl"][place][0] - papers[method][place][0], "more")


def on_domains(found: Collection, pairs: tuple[tuple[str, str, str, float], ...]) -> Iterator[Check]:
    """Pairs of methods across the domains, each with the word that is claimed and the fewest points."""
    for one, word, other, least in pairs:
        text = f"{title(one)} minus {title(other)}, domains"
        yield compared(found, text, _domain_key(one), _domain_key(other), word, least)


def _domain_key(row: str) -> Key:
    """Where a row's runs on the domains are."""
    studies = (STUDIES[name] for name in ("domains", "ablation", "similarity", "departures"))
    cells = (cell for study in studies for cell in study.own if cell.preset.startswith(DOMAINS))
    return next((cell.what, cell.setting, row) for cell in cells if cell.row == row)


def least_cost(found: Collection) -> Iterator[Check]:
    """Bytes of Factorized-FL against those of all that communicate."""
    ours = total_bytes(found.of("domains", "domains", "factorized-fl"))
    for method in DOMAIN_METHODS:
        if method not in ("factorized-fl", "stand-alone"):
            text = f"bytes of Factorized-FL below those of {title(method)}, domains"
            theirs = total_bytes(found.of("domains", "domains", method))
            if ours is None or theirs is None:
                yield Check(text)
            else:
                yield decided(text, ours < theirs, f"{ours / 1e9:.3f} GB against {theirs / 1e9:.3f} GB")


def best_for_its_bytes(found: Collection) -> Iterator[Check]:
    """Factorized-FL's last accuracy against that of the others when they have sent as many bytes, both ways."""
    ours = found.of("domains", "domains", "factorized-fl")
    for method in DOMAIN_METHODS:
        if method not in ("factorized-fl", "stand-alone"):
            text = f"accuracy of Factorized-FL above that of {title(method)} for as many bytes, domains"
            theirs = found.of("domains", "domains", method)
            budget = total_bytes(ours)
            if budget is None or not theirs:
                yield Check(text)
                continue
            rounds = int((bytes_sent(theirs) <= budget).sum())
            one, other = mean_curve(ours)[-1], mean_curve(theirs)[rounds - 1] if rounds else 0.0
            yield decided(text, one > other, f"{one:.1f}% against {other:.1f}% after {rounds} rounds")


def converges_faster(found: Collection) -> Iterator[Check]:
    """Rounds to several shares of the lower of Factorized-FL's and another's last accuracies, means over clients and
    seeds; undecided if it is the faster to some of them only."""
    ours = found.of("domains", "domains", "factorized-fl")
    for method in DOMAIN_METHODS:
        if method != "factorized-fl":
            text = f"rounds of Factorized-FL below those of {title(method)}, domains"
            theirs = found.of("domains", "domains", method)
            if not ours or not theirs:
                yield Check(text)
                continue
            curves = mean_curve(ours), mean_curve(theirs)
            goals = [share * min(curve[-1] for curve in curves) for share in ON_THE_WAY]
            rounds = [[int((curve >= goal).argmax()) + 1 for curve in curves] for goal in goals]
            figures = ", ".join(
                f"{one} against {other} to {goal:.1f}%" for (one, other), goal in zip(rounds, goals, strict=True)
            )
            faster = {one < other for one, other in rounds}
            yield Check(text, UNDECIDED, figures) if len(faster) > 1 else decided(text, True in faster, figures)


def costs(found: Collection) -> Iterator[Check]:
    """Our count by the paper's formula against its cost column; methods with the same cost count once."""
    for what, setting in (("label-cifar10", "permuted-iid"), ("domains", "domains")):
        seen: set[float] = set()
        for method, row in published()[what].items():
            if row.get("cost") in (None, *seen):
                continue
            seen.add(row["cost"])
            text = f"cost of {title(method)}, {_data(what)}, within {COST_TOLERANCE:.0%}"
            results = found.of(what, setting, method)
            both = [formula_gigabytes(results, convention) for convention in ("a", "b")]
            if both[0] is None or both[1] is None:
                yield Check(text)
                continue
            near = any(abs(value / row["cost"] - 1) <= COST_TOLERANCE for value in both if value is not None)
            yield decided(text, near, f"{both[0]:.2f} (A), {both[1]:.2f} (B), paper {row['cost']:g} GB")


def _data(what: str) -> str:
    return {"label-cifar10": "CIFAR-10", "label-svhn": "SVHN", "domains": "domains"}[what]
