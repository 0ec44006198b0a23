"""Tests of what the paper says of networks: how they are built, how large they are, and what that does to them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from factorized_fl.reproduce.cells import Cell, Result
from factorized_fl.reproduce.checks import UNHURT, Check, compared, decided, judged
from factorized_fl.reproduce.choices import DOMAINS
from factorized_fl.reproduce.collection import Collection, difference, mean_curve, model_millions
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.published import published
from factorized_fl.reproduce.rows import ROUND_AFTER, sparsity_results
from factorized_fl.reproduce.studies import HEADS, LAMBDAS, STUDIES
from factorized_fl.reproduce.table_tests import BASELINES

FEWER = 0.7  # of the regular parameters: 30% fewer
HALF, MOST_LEFT = 0.5, 0.65  # of the regular parameters: below the one accuracy falls, up to the other it is best
SIZE_TOLERANCE = 0.05


def architectures(found: Collection, one: tuple[str, str], other: tuple[str, str], word: str) -> Iterator[Check]:
    """(method, head) against (method, head) of both networks, after many epochs and few; "" stands for each head."""
    for model in ("resnet9", "resnet18"):
        for head in HEADS if not one[1] else [""]:
            first, second = (("architectures", f"{model}-{own or head}", method) for method, own in (one, other))
            names = [f"{title(method)} {setting}" for _, setting, method in (first, second)]
            for label, round in ROUND_AFTER.items():
                check = compared(found, f"{names[0]} minus {names[1]}, {label}", first, second, word, round=round)
                yield check if round is None else replace(check, published=None)  # the paper has one of each


def more_layers(found: Collection, method: str, word: str) -> Iterator[Check]:
    """A second fully connected layer against none."""
    for head in ("2fc-norm", "2fc"):
        yield from architectures(found, (method, head), (method, "1fc"), word)


def sizes(found: Collection, l1: bool, epochs: Sequence[str]) -> Iterator[Check]:
    """Sizes of the factorised network against the published ones, after few epochs, after many or both."""
    for value in LAMBDAS:
        paper = published()["sparsity"][f"lambda={value:g}"]["millions"]
        for label in epochs:
            ending = "" if l1 else ", no gradient of L1"
            text = f"size at lambda {value:g}{ending} after {label} within {SIZE_TOLERANCE:.0%}"
            results = sparsity_results(found, value, l1)
            size = model_millions(results[0], ROUND_AFTER[label]) if results else None
            if size is None:
                yield Check(text)
            else:
                yield decided(text, abs(size / paper - 1) <= SIZE_TOLERANCE, f"{size:.3f} M, paper {paper:.3f} M")


def small_and_better(found: Collection) -> Iterator[Check]:
    """Of the factorised networks, with and without L1's gradient, that nearest in size to the claim's, against the
    regular one, after many epochs and few."""
    regular = sparsity_results(found, None, True)
    wanted = FEWER * published()["sparsity"]["regular"]["millions"]
    for l1, ending in ((True, ""), (False, ", no gradient of L1")):
        runs = {value: results for value in LAMBDAS if (results := sparsity_results(found, value, l1))}
        for label, round in ROUND_AFTER.items():
            sizes = {value: model_millions(results[0], round) or 0.0 for value, results in runs.items()}
            if not sizes:
                yield Check(f"factorised{ending}, minus regular, {label}")
                continue
            value = min(sizes, key=lambda value: abs(sizes[value] - wanted))
            text = f"factorised at lambda {value:g}{ending}, {sizes[value]:.3f} M, minus regular, {label}"
            yield judged(text, difference(runs[value], regular, round), "more")


def small_on_domains(found: Collection) -> Iterator[Check]:
    """Factorised networks as small as the appendix says against the paper's best baseline and against ours."""
    best = max(
        (row for row in BASELINES if found.of("domains", "domains", row)), key=lambda row: _mean(found, row), default=""
    )
    for name, results in _of_size(found, HALF, MOST_LEFT):
        for row in dict.fromkeys(("per-fedavg", best or "per-fedavg")):
            gap = difference(results, found.of("domains", "domains", row), between_seeds=found.between_seeds)
            yield judged(f"{name}, minus {title(row)}, domains", gap, "more")


def half_is_enough(found: Collection) -> Iterator[Check]:
    """The factorised network of which nearest to a half is left against two baselines, with no loss to speak of."""
    regular = published()["sparsity"]["regular"]["millions"]
    sized = [(abs(_millions(results) / regular - HALF), cell, results) for cell, results in _pruned(found) if results]
    _, cell, results = min(sized, key=lambda one: one[0], default=(0.0, None, ()))
    for row in ("clustered-fl", "fedavg"):
        gap = difference(results, found.of("domains", "domains", row), between_seeds=found.between_seeds)
        name = f"{title(cell.row)}, {_millions(results):.3f} M," if cell else "half of the network"
        yield judged(f"{name} minus {title(row)}, domains", gap, "more", -UNHURT)


def too_small_on_domains(found: Collection, least: float) -> Iterator[Check]:
    """Networks of which less than half is left against one that is pruned little, with L1's gradient as they are."""
    for name, results in _of_size(found, 0.0, HALF):
        if results and not results[0].configuration["options"]["l1"]:
            whole = ("departures", "domains", "factorized-fl+no-l1")
        else:
            whole = ("sparsity", "domains", f"factorized-fl+lambda={min(LAMBDAS):g}")
        gap = difference(results, found.of(*whole), between_seeds=found.between_seeds)
        yield judged(f"{name}, minus {title(whole[2])}, domains", gap, "less", least)


def _of_size(found: Collection, least: float, most: float) -> Iterator[tuple[str, Sequence[Result]]]:
    """The factorised networks on the domains with such a share of the regular parameters, or of a size yet unknown."""
    regular = published()["sparsity"]["regular"]["millions"]
    for cell, results in _pruned(found):
        if not results:
            yield title(cell.row), ()
        elif least * regular < _millions(results) <= most * regular:
            yield f"{title(cell.row)}, {_millions(results):.3f} M", results


def _pruned(found: Collection) -> Iterator[tuple[Cell, Sequence[Result]]]:
    """The factorised networks on the domains, pruned more and less."""
    for cell in STUDIES["sparsity"].shown:
        if cell.method == "factorized-fl" and cell.preset == DOMAINS:
            yield cell, found.get(cell)


def _millions(results: Sequence[Result]) -> float:
    return fmean(model_millions(result) or 0.0 for result in results)


def _mean(found: Collection, row: str) -> float:
    return float(mean_curve(found.of("domains", "domains", row))[-1])
