"""Checks, of which tests of claims are made: each compares something with what the paper says about it.

Each kind of check in claims.toml is a function here that yields the checks; a check of cells that were not run says so.
"""

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from studies.paper.cells import Cell, named_list, title
from studies.paper.choices import DOMAINS
from studies.paper.grid import STUDIES
from studies.paper.grouping import chance, closer_within, nearest_of_own
from studies.paper.published import published, published_mean
from studies.paper.rows import ALL_EPOCHS, ROUND_AFTER, sparsity_key
from studies.paper.runs import Run, bytes_by_round, formula_gigabytes, mean_curve, mean_millions, total_bytes
from studies.paper.table import Compared, Table

AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN = "as claimed", "not as claimed", "undecided", "not run"
COST_TOLERANCE, SIZE_TOLERANCE = 0.02, 0.05
MOST = 0.5  # share of the nearest clients from which on clients are grouped
BY_CHANCE = 0.05  # p-value below which a similarity is beyond chance
ON_THE_WAY = (0.7, 0.8, 0.9)  # shares of the final accuracy at which convergence is timed
FEWER = 0.7  # of the regular parameters: 30% fewer
HALF, MOST_LEFT = 0.5, 0.65  # of the regular parameters
LAST_EPOCHS = 10
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One comparison: what it compares, its outcome, and the figures."""

    text: str
    outcome: str = NOT_RUN
    figures: str = ""
    published: bool | None = None  # whether the published numbers come out as claimed, where both are published


class _Titles(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return title(value) if conversion == "t" else super().convert_field(value, conversion)


def fill_in(fields: Fields) -> dict[str, Any]:
    """Return the fields of a check with their references to each other filled in; cells become keys."""
    filled = dict(fields) | {name: _Titles().format(fields[name], **fields) for name in _FILLED if name in fields}
    return filled | {name: tuple(filled[name].split("/")) for name in ("one", "other", "cell") if name in filled}


_FILLED = ("text", "one", "other", "cell")


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


# -- accuracy


def accuracy(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare two cells by their accuracy, beside the same difference of the published numbers."""
    one, other, relation, margin = (
        fields["one"],
        fields["other"],
        fields.get("relation", "more"),
        fields.get("margin", 0.0),
    )
    after, domain = ROUND_AFTER[fields.get("epochs", ALL_EPOCHS)], fields.get("domain")
    check = _judged(fields["text"], table.compare(one, other, after, domain), relation, margin)
    papers = [published()["domains"][key[2]][domain] if domain else published_mean(*key) for key in (one, other)]
    if papers[0] is None or papers[1] is None:
        yield check
        return
    gap = papers[0][0] - papers[1][0]
    figures = "" if check.outcome == NOT_RUN else f"{check.figures}; paper {gap:+.2f}"
    # The paper has one number for a single client, which counts for the last round only.
    published_too = (gap if relation == "more" else -gap) > margin if after is None else None
    yield replace(check, figures=figures, published=published_too)


def converges_faster(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the rounds to several shares of the lower of two final accuracies; undecided if these disagree."""
    one, other = table.of(*fields["one"]), table.of(*fields["other"])
    if not one or not other:
        yield Check(fields["text"])
        return
    curves = mean_curve(one), mean_curve(other)
    goals = [share * min(curve[-1] for curve in curves) for share in ON_THE_WAY]
    rounds = [[int((curve >= goal).argmax()) + 1 for curve in curves] for goal in goals]
    figures = ", ".join(f"{a} against {b} to {goal:.1f}%" for (a, b), goal in zip(rounds, goals, strict=True))
    faster = {a < b for a, b in rounds}
    if len(faster) > 1:
        yield Check(fields["text"], UNDECIDED, figures)
    else:
        yield _decided(fields["text"], True in faster, figures)


# -- bytes and published numbers


def fewer_bytes(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the bytes that two cells sent."""
    one, other = total_bytes(table.of(*fields["one"])), total_bytes(table.of(*fields["other"]))
    if one is None or other is None:
        yield Check(fields["text"])
    else:
        yield _decided(fields["text"], one < other, f"{one / 1e9:.3f} GB against {other / 1e9:.3f} GB")


def better_for_its_bytes(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the last accuracy of one cell with that of the other when it had sent as many bytes, both ways."""
    one, other = table.of(*fields["one"]), table.of(*fields["other"])
    budget = total_bytes(one)
    if budget is None or not other:
        yield Check(fields["text"])
        return
    rounds = int((bytes_by_round(other) <= budget).sum())
    ours, theirs = mean_curve(one)[-1], mean_curve(other)[rounds - 1] if rounds else 0.0
    yield _decided(fields["text"], ours > theirs, f"{ours:.1f}% against {theirs:.1f}% after {rounds} rounds")


def published_cost(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare our count by the paper's formula, in both conventions, with the paper's cost column."""
    study, _, method = fields["cell"]
    paper = published()[study][method]["cost"]
    without, with_first = (formula_gigabytes(table.of(*fields["cell"]), convention) for convention in ("a", "b"))
    if without is None or with_first is None:
        yield Check(fields["text"])
    else:
        near = any(abs(value / paper - 1) <= COST_TOLERANCE for value in (without, with_first))
        yield _decided(fields["text"], near, f"{without:.2f} (A), {with_first:.2f} (B), paper {paper:g} GB")


def published_size(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the size of a single client's factorised network with the published one."""
    paper = published()["sparsity"][f"lambda={fields['value']:g}"]["millions"]
    runs = table.of(*sparsity_key(fields["value"], fields["l1"]))
    size = mean_millions(runs[:1], ROUND_AFTER[fields["epochs"]])
    if size is None:
        yield Check(fields["text"])
    else:
        near = abs(size / paper - 1) <= SIZE_TOLERANCE
        yield _decided(fields["text"], near, f"{size:.3f} M, paper {paper:.3f} M")


# -- small networks


def smaller_and_better(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the factorised network nearest in size to 30% fewer parameters with the regular one."""
    after = ROUND_AFTER[fields["epochs"]]
    keys = {value: sparsity_key(value, fields["l1"]) for value in named_list("lambdas")}
    sizes = {value: mean_millions(runs[:1], after) or 0.0 for value, key in keys.items() if (runs := table.of(*key))}
    if not sizes:
        yield Check(fields["text"])
        return
    value = min(sizes, key=lambda value: abs(sizes[value] - FEWER * _regular_millions()))
    name = fields["name"].replace("factorised", f"factorised at lambda {value:g}")
    text = f"{name}, {sizes[value]:.3f} M, minus regular, {fields['epochs']}"
    yield _judged(text, table.compare(keys[value], sparsity_key(None, True), after), "more")


def small_on_domains(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare networks of the size in the appendix with the paper's best baseline and with ours."""
    runs = {row: table.of("domains", "domains", row) for row in named_list("baselines")}
    best = max((row for row in runs if runs[row]), key=lambda row: mean_curve(runs[row])[-1], default="per-fedavg")
    for name, cell in _of_size(table, HALF, MOST_LEFT):
        for row in dict.fromkeys(("per-fedavg", best)):
            compared = table.compare(cell.key, ("domains", "domains", row))
            yield _judged(f"{name}, minus {title(row)}, domains", compared, "more")


def half_on_domains(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the network of which nearest to a half is left with a baseline."""
    sizes = {cell.key: _millions(table, cell) for cell in _pruned() if table.get(cell)}
    if not sizes:
        yield Check(fields["text"])
        return
    key = min(sizes, key=lambda key: abs(sizes[key] / _regular_millions() - HALF))
    text = f"{title(key[2])}, {sizes[key]:.3f} M, minus {title(fields['method'])}, domains"
    yield _judged(text, table.compare(key, ("domains", "domains", fields["method"])), "more", fields["margin"])


def too_small_on_domains(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare networks of which less than half is left with one pruned little, with L1's gradient or without alike."""
    for name, cell in _of_size(table, 0.0, HALF):
        runs = table.get(cell)
        if runs and not runs[0].configuration["options"]["l1"]:
            whole = ("departures", "domains", "factorized-fl+no-l1")
        else:
            whole = ("sparsity", "domains", f"factorized-fl+lambda={min(named_list('lambdas')):g}")
        text = f"{name}, minus {title(whole[2])}, domains"
        yield _judged(text, table.compare(cell.key, whole), "less", fields["margin"])


def _of_size(table: Table, least: float, most: float) -> Iterator[tuple[str, Cell]]:
    """Yield the networks on the domains with a share of the regular parameters in a range, or not run yet."""
    for cell in _pruned():
        if not table.get(cell):
            yield title(cell.row), cell
        elif least < _millions(table, cell) / _regular_millions() <= most:
            yield f"{title(cell.row)}, {_millions(table, cell):.3f} M", cell


def _pruned() -> list[Cell]:
    return [cell for cell in STUDIES["sparsity"].shown if (cell.method, cell.preset) == ("factorized-fl", DOMAINS)]


def _millions(table: Table, cell: Cell) -> float:
    return mean_millions(table.get(cell)) or 0.0


def _regular_millions() -> float:
    return published()["sparsity"]["regular"]["millions"]


# -- u and v


def nearest_of_own_domain(table: Table, fields: Fields) -> Iterator[Check]:
    """Test whether most of the nearest clients are of one's own domain, or no more than by chance, in the last round."""
    runs, factor = table.of(*fields["cell"]), fields["factor"]
    if not runs:
        yield Check(fields["text"])
        return
    share, probability = _last(runs, factor, "found"), chance(runs, factor, nearest_of_own)
    domains = runs[0].domains
    expected = (fmean(map(domains.count, domains)) - 1) / (len(domains) - 1)
    passed = share > MOST if fields["grouped"] else probability > BY_CHANCE
    yield _decided(fields["text"], passed, f"{share:.3f}, by chance {expected:.3f}, {_p(probability)}")


def closer_within_domains(table: Table, fields: Fields) -> Iterator[Check]:
    """Test whether cosines within a domain are above those between domains, beyond chance, in the last round."""
    runs, factor = table.of(*fields["cell"]), fields["factor"]
    if not runs:
        yield Check(fields["text"])
        return
    probability = chance(runs, factor, closer_within)
    figures = f"{_last(runs, factor, 'same'):.4f} against {_last(runs, factor, 'other'):.4f}, {_p(probability)}"
    if BY_CHANCE <= probability <= 1 - BY_CHANCE:
        yield Check(fields["text"], UNDECIDED, figures)
    else:
        yield _decided(fields["text"], probability < BY_CHANCE, figures)


def u_closer_than_v(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the mean cosine of u between domains with that of v in the last round."""
    if runs := table.of(*fields["cell"]):
        u, v = (_last(runs, factor, "other") for factor in ("u", "v"))
        yield _decided(fields["text"], u > v, f"{u:.4f} against {v:.4f}")
    else:
        yield Check(fields["text"])


def _last(runs: Sequence[Run], factor: str, name: str) -> float:
    return fmean(run.record["factors"][factor][name][-1] for run in runs)


def _p(probability: float) -> str:
    return "p < 0.001" if probability < 0.001 else f"p = {probability:.3f}"


# -- heterogeneity


def farther_updates(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the distances of two parties' updates from the first party's."""
    totals = [record["dense"]["body"]["total"][-1] for record in table.heterogeneity]
    yield _of_all(fields, [(total[fields["farther"]], total[fields["nearer"]]) for total in totals], "{:.3f}")


def worse_averages(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the accuracy on partition 1 of averages with a party with that of averages with partition 2."""
    pairs = [
        [fmean(100 * row[1] / record["tests"] for row in record["averaged"][party]["all"]) for party in parties]
        for parties in (("partition 2", fields["party"]),)
        for record in table.heterogeneity
    ]
    check = _of_all(fields, [(better, worse) for better, worse in pairs], "{:.1f}%")
    words = check.figures.split(" against ")
    yield replace(check, figures=" against ".join(reversed(words)))


def _of_all(fields: Fields, pairs: Sequence[tuple[float, float]], form: str) -> Check:
    """Return whether the first of each pair is larger, with the means of both."""
    if not pairs:
        return Check(fields["text"])
    means = [form.format(fmean(column)) for column in zip(*pairs, strict=True)]
    return _decided(fields["text"], all(one > other for one, other in pairs), " against ".join(means))


def approaching_factors(table: Table, fields: Fields) -> Iterator[Check]:
    """Compare the last epochs' updates of u with the first's, or with those of v, where u is averaged after each epoch."""
    runs = [record["factorised_together"][fields["party"]] for record in table.heterogeneity]
    if not runs:
        yield Check(fields["text"])
        return
    first = fmean(run["u"]["epoch"][0][0] for run in runs)
    u, v = (fmean(row[0] for run in runs for row in run[factor]["epoch"][-LAST_EPOCHS:]) for factor in ("u", "v"))
    if fields["factor"] == "u":
        since = fmean(run["u"]["total"][-1][0] for run in runs)
        figures = f"{first:.3f} in the first epoch, {u:.3f} in the last {LAST_EPOCHS}; since the start {since:.3f}"
        yield _decided(fields["text"], u < first, figures)
    else:
        yield _decided(fields["text"], v > u, f"{v:.3f} against {u:.3f} in the last {LAST_EPOCHS}")


KINDS: dict[str, Callable[[Table, Fields], Iterator[Check]]] = {
    kind.__name__: kind
    for kind in (
        *(accuracy, converges_faster, fewer_bytes, better_for_its_bytes, published_cost, published_size),
        *(smaller_and_better, small_on_domains, half_on_domains, too_small_on_domains),
        *(nearest_of_own_domain, closer_within_domains, u_closer_than_v),
        *(farther_updates, worse_averages, approaching_factors),
    )
}
