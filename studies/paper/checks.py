"""Checks, of which tests of claims are made: each compares something with what the paper says about it.

Each kind of check in claims.toml is a function of that name here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from factorized_fl.results.statistic import LabelStatistic, nearest_share, permutation_p_value, within_excess
from factorized_fl.seeds import numpy_rng
from studies.paper.cells import (
    ALL_EPOCHS,
    DOMAINS,
    ROUND_AFTER,
    Key,
    as_key,
    named_list,
    published,
    published_mean,
    title,
)
from studies.paper.grid import STUDIES
from studies.paper.runs import Run, bytes_by_round, mean_curve, mean_of
from studies.paper.table import Compared, Table

OUTCOMES = AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN = "as claimed", "not as claimed", "undecided", "not run"
MOST = 0.5  # share of the nearest clients from which on clients are grouped
BY_CHANCE = 0.05  # p-value below which a similarity is beyond chance
ON_THE_WAY = (0.7, 0.8, 0.9)  # shares of the final accuracy at which convergence is timed
FEWER = 0.7  # of the regular parameters: 30% fewer
HALF, MOST_LEFT = 0.5, 0.65  # of the regular parameters
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One comparison: what it compares, its outcome, and the figures."""

    text: str
    outcome: str = NOT_RUN
    figures: str = ""
    published: bool | None = None  # whether the published numbers come out as claimed, where both are published


def run_check(table: Table, fields: Fields) -> list[Check]:
    """Return the checks that a table of fields in claims.toml describes, usually one."""
    needed = [fields[name] for name in ("one", "other", "cell") if name in fields]
    if fields["kind"] != "accuracy" and not all(map(table.runs, needed)):
        return [Check(fields["text"])]
    found = KINDS[fields["kind"]](table, fields)
    return found if isinstance(found, list) else [found]


def _decided(text: str, passed: bool, figures: str) -> Check:
    return Check(text, AS_CLAIMED if passed else CONTRARY, figures)


def _judged(text: str, compared: Compared | None, relation: str, margin: float = 0.0) -> Check:
    """Return whether a difference is more or less than the margin; undecided while its error allows for both."""
    if compared is None:
        return Check(text)
    side = compared.difference.decide(margin if relation == "more" else -margin)
    if side == "undecided":
        return Check(text, UNDECIDED, str(compared))
    return _decided(text, side == ("above" if relation == "more" else "below"), str(compared))


def accuracy(table: Table, fields: Fields) -> Check:
    """Compare two cells by their accuracy, beside the same difference of the published numbers."""
    one, other = (as_key(fields[name]) for name in ("one", "other"))
    relation, margin, domain = fields.get("relation", "more"), fields.get("margin", 0.0), fields.get("domain")
    after = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)]
    check = _judged(fields["text"], table.compare(one, other, after, domain), relation, margin)
    papers = [published(f"domains/{key[2]}/{domain}") if domain else published_mean(*key) for key in (one, other)]
    if papers[0] is None or papers[1] is None:
        return check
    gap = papers[0][0] - papers[1][0]
    figures = "" if check.outcome == NOT_RUN else f"{check.figures}; paper {gap:+.2f}"
    # The paper has one number for a single client, which counts for the last round only.
    passed = None if after else (gap if relation == "more" else -gap) > margin
    return replace(check, figures=figures, published=passed)


def number(table: Table, fields: Fields) -> Check:
    """Compare the first two of some quantities of cells, which have no error."""
    values = _values(table, fields)
    if values is None:
        return Check(fields["text"])
    passed = values[0] < values[1] if fields.get("relation") == "less" else values[0] > values[1]
    return _decided(fields["text"], passed, fields["form"].format(*values))


def within(table: Table, fields: Fields) -> Check:
    """Compare some quantities with a published one: one of them has to agree within a tolerance."""
    values, paper = _values(table, fields), published(fields["paper"])
    if values is None:
        return Check(fields["text"])
    near = any(abs(value / paper - 1) <= fields["tolerance"] for value in values)
    return _decided(fields["text"], near, fields["form"].format(*values, paper=paper))


def _values(table: Table, fields: Fields) -> list[float] | None:
    pairs = [quantity.split(" | ") for quantity in fields["quantities"]]
    after = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)]
    means = [mean_of(table.runs(cell), quantity, after) for cell, quantity in pairs]
    values = [mean.value for mean in means if mean]
    return values if len(values) == len(pairs) else None


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


# -- u and v


def nearest_of_own_domain(table: Table, fields: Fields) -> Check:
    """Test whether the clients with the most similar factors in the last round are mostly, or by chance, of the domain."""
    runs, factor = table.runs(fields["cell"]), fields["factor"]
    probability, domains = _chance(runs, factor, nearest_share), runs[0].domains
    share = fmean(run.entry(f"factors/{factor}/found/-1") for run in runs)
    expected = (fmean(map(domains.count, domains)) - 1) / (len(domains) - 1)
    passed = share > MOST if fields["grouped"] else probability > BY_CHANCE
    return _decided(fields["text"], passed, f"{share:.3f}, by chance {expected:.3f}, {_p(probability)}")


def closer_within_domains(table: Table, fields: Fields) -> Check:
    """Test whether cosines within a domain are above those between domains, beyond chance, in the last round."""
    runs, factor = table.runs(fields["cell"]), fields["factor"]
    probability = _chance(runs, factor, within_excess)
    same, other = (fmean(run.entry(f"factors/{factor}/{name}/-1") for run in runs) for name in ("same", "other"))
    figures = f"{same:.4f} against {other:.4f}, {_p(probability)}"
    if BY_CHANCE <= probability <= 1 - BY_CHANCE:
        return Check(fields["text"], UNDECIDED, figures)
    return _decided(fields["text"], probability < BY_CHANCE, figures)


def _chance(runs: Sequence[Run], factor: str, statistic: LabelStatistic) -> float:
    last = [np.array(list(run.record["factors"][factor]["matrices"].values())[-1]) for run in runs]
    samples = [(m, run.domains, numpy_rng(run.seed, "deals", factor)) for m, run in zip(last, runs, strict=True)]
    return permutation_p_value(samples, statistic)


def _p(probability: float) -> str:
    return "p < 0.001" if probability < 0.001 else f"p = {probability:.3f}"


# -- small networks


def smaller_and_better(table: Table, fields: Fields) -> Check:
    """Compare the factorised network nearest in size to 30% fewer parameters with the regular one."""
    after, regular = ROUND_AFTER[fields["epochs"]], published("sparsity/regular/millions")
    sizes = {name: size.value for name in fields["networks"] if (size := mean_of(table.runs(name), "millions", after))}
    if not sizes:
        return Check(fields["text"])
    nearest = min(sizes, key=lambda name: abs(sizes[name] - FEWER * regular))
    value = nearest.partition("lambda=")[2].partition(",")[0] or "0.0005"
    name = fields["name"].replace("factorised", f"factorised at lambda {value}")
    text = f"{name}, {sizes[nearest]:.3f} M, minus regular, {fields['epochs']}"
    return _judged(text, table.compare(as_key(nearest), as_key(fields["other"]), after), "more")


def small_on_domains(table: Table, fields: Fields) -> list[Check]:
    """Compare networks of the size in the appendix with the paper's best baseline and with ours."""
    runs = {row: table.of("domains", "domains", row) for row in named_list("baselines")}
    best = max((row for row in runs if runs[row]), key=lambda row: mean_curve(runs[row])[-1], default="per-fedavg")
    return [
        _judged(f"{name}, minus {title(row)}, domains", table.compare(key, ("domains", "domains", row)), "more")
        for name, key in _of_size(table, HALF, MOST_LEFT)
        for row in dict.fromkeys(("per-fedavg", best))
    ]


def half_on_domains(table: Table, fields: Fields) -> Check:
    """Compare the network of which nearest to a half is left with a baseline."""
    sizes = {key: share for key, share in _pruned(table).items() if share is not None}
    if not sizes:
        return Check(fields["text"])
    key = min(sizes, key=lambda key: abs(sizes[key] - HALF))
    text = f"{_sized(key, sizes[key])}, minus {title(fields['method'])}, domains"
    return _judged(text, table.compare(key, ("domains", "domains", fields["method"])), "more", fields["margin"])


def too_small_on_domains(table: Table, fields: Fields) -> list[Check]:
    """Compare networks of which less than half is left with one pruned little, with L1's gradient or without alike."""
    checks = []
    for name, key in _of_size(table, 0.0, HALF):
        whole = as_key(fields["without_l1" if "no-l1" in key[2] and table.of(*key) else "with_l1"])
        text = f"{name}, minus {title(whole[2])}, domains"
        checks.append(_judged(text, table.compare(key, whole), "less", fields["margin"]))
    return checks


def _of_size(table: Table, least: float, most: float) -> list[tuple[str, Key]]:
    """Return the networks on the domains with a share of the regular parameters in a range, or not run yet."""
    shares = _pruned(table).items()
    return [(_sized(key, share), key) for key, share in shares if share is None or least < share <= most]


def _sized(key: Key, share: float | None) -> str:
    regular = published("sparsity/regular/millions")
    return title(key[2]) if share is None else f"{title(key[2])}, {share * regular:.3f} M"


def _pruned(table: Table) -> dict[Key, float | None]:
    """Return the factorised networks on the domains and the share of the regular parameters that is left of each."""
    cells = [c for c in STUDIES["sparsity"].shown if c.method == "factorized-fl" and c.preset.startswith(DOMAINS)]
    sizes = {cell.key: mean_of(table.get(cell), "millions") for cell in cells}
    return {key: size.value / published("sparsity/regular/millions") if size else None for key, size in sizes.items()}


KINDS: dict[str, Callable[[Table, Fields], Check | list[Check]]] = {
    kind.__name__: kind
    for kind in (
        *(accuracy, number, within, better_for_its_bytes, converges_faster),
        *(nearest_of_own_domain, closer_within_domains),
        *(smaller_and_better, small_on_domains, half_on_domains, too_small_on_domains),
    )
}
