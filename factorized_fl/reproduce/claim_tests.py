"""The tests that claims are made of: each compares cells, or numbers of cells, with what the paper says of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.choices import DOMAINS
from factorized_fl.reproduce.collection import (
    Collection,
    Difference,
    bytes_sent,
    difference,
    formula_gigabytes,
    mean_curve,
    model_millions,
    total_bytes,
)
from factorized_fl.reproduce.measures import same_domain
from factorized_fl.reproduce.names import title, variant_title
from factorized_fl.reproduce.published import published, published_mean
from factorized_fl.reproduce.rows import ROUND_AFTER, sparsity_results
from factorized_fl.reproduce.studies import DOMAIN_METHODS, HEADS, LABEL_METHODS, LAMBDAS, STUDIES

LABEL_STUDIES = ("label-cifar10", "label-svhn")
PARTITIONS = ("iid", "non-iid")
LABEL_SETTINGS = tuple(f"{labels}-{partition}" for partition in PARTITIONS for labels in ("standard", "permuted"))
AVERAGING = ("fedavg", "fedprox", "clustered-fl", "per-fedavg", "fedfomo", "pfedpara")
MOST = 0.5  # of the nearest, for clients to be grouped
FEWER = 0.7  # of the regular parameters: 30% fewer
HALF, MOST_LEFT = 0.5, 0.65  # of the regular parameters: below the one accuracy falls, up to the other it is best
UNHURT = 1.0  # points that count as no loss
NEARLY = 0.9  # of an accuracy, when convergence is timed
LAST = 10  # epochs
SIZE_TOLERANCE = 0.05
COST_TOLERANCE = 0.02

Key = tuple[str, str, str]  # study, setting, row


AS_CLAIMED, CONTRARY, UNDECIDED, NOT_RUN = "as claimed", "not as claimed", "undecided", "not run"


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
    check = judged(text, difference(found.of(*one), found.of(*other), round, printed), word, least)
    papers = [paper[0] for key in (one, other) if (paper := published_mean(*key))]
    if len(papers) < 2:
        return check
    gap = papers[0] - papers[1]
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


def permutation(found: Collection, methods: tuple[str, ...], hurts: bool) -> Iterator[Check]:
    """Accuracy with permuted labels against that with labels that agree."""
    for what in LABEL_STUDIES:
        for partition in PARTITIONS:
            word, least = ("less", 0.0) if hurts else ("more", -UNHURT)
            for method in methods:
                one, other = ((what, f"{labels}-{partition}", method) for labels in ("permuted", "standard"))
                text = f"{title(method)}, {_data(what)} {partition}: permuted minus standard"
                yield compared(found, text, one, other, word, least)


def below_alone(found: Collection) -> Iterator[Check]:
    """Methods that average against Stand-Alone where labels are permuted."""
    for what in LABEL_STUDIES:
        for partition in PARTITIONS:
            setting = f"permuted-{partition}"
            for method in AVERAGING:
                text = f"{title(method)} minus Stand-Alone, {_data(what)} permuted {partition}"
                yield compared(found, text, (what, setting, method), (what, setting, "stand-alone"), "less")


def better_than_alone(found: Collection) -> Iterator[Check]:
    """All methods against Stand-Alone where labels agree."""
    for what in LABEL_STUDIES:
        for partition in PARTITIONS:
            setting = f"standard-{partition}"
            for method in (*AVERAGING, "factorized-fl", "factorized-fl-beta"):
                text = f"{title(method)} minus Stand-Alone, {_data(what)} standard {partition}"
                yield compared(found, text, (what, setting, method), (what, setting, "stand-alone"), "more")


def beta_best(found: Collection) -> Iterator[Check]:
    """Factorized-FL beta against everybody else in every label setting."""
    for what in LABEL_STUDIES:
        for setting in LABEL_SETTINGS:
            for method in LABEL_METHODS:
                if method != "factorized-fl-beta":
                    text = f"beta minus {title(method)}, {_data(what)} {setting}"
                    yield compared(found, text, (what, setting, "factorized-fl-beta"), (what, setting, method), "more")


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
    """Rounds to nearly the lower of Factorized-FL's and another's last accuracies, means over clients and seeds."""
    ours = found.of("domains", "domains", "factorized-fl")
    for method in DOMAIN_METHODS:
        if method != "factorized-fl":
            text = f"rounds of Factorized-FL below those of {title(method)}, domains"
            theirs = found.of("domains", "domains", method)
            if not ours or not theirs:
                yield Check(text)
                continue
            curves = mean_curve(ours), mean_curve(theirs)
            goal = NEARLY * min(curve[-1] for curve in curves)
            one, other = (int((curve >= goal).argmax()) + 1 for curve in curves)
            yield decided(text, one < other, f"{one} against {other} to {goal:.1f}%")


def _factorised(found: Collection) -> Iterator[tuple[str, list[Result]]]:
    """The runs whose u and v are looked at, and what they are called."""
    yield "the paper's layout", found.of("domains", "domains", "factorized-fl")
    for row in ("factorized-fl+released", "factorized-fl+released-layout"):
        yield variant_title(row), found.of("similarity", "similarity", row)


def groups_by_domain(found: Collection, kind: str, groups: bool) -> Iterator[Check]:
    """Whether most of a client's most similar ones are of its own domain, the mean over clients in the last round."""
    for name, results in _factorised(found):
        text = f"{kind}: {'' if groups else 'not '}most of the nearest are of one's own domain, {name}"
        if not results:
            yield Check(text)
            continue
        share = _average(result.record["factors"][kind]["found"][-1] for result in results)
        same = same_domain(results[0].domains)
        chance = float(same.double().sum(1).mean()) / (len(same) - 1)
        yield decided(text, (share > MOST) is groups, f"{share:.3f}, chance {chance:.3f}")


def more_alike(found: Collection, text: str, one: tuple[str, str], other: tuple[str, str]) -> Iterator[Check]:
    """One mean cosine above another in the last round: each of u or v, and with the same domain or others."""
    for name, results in _factorised(found):
        full = f"{text}, {name}"
        if not results:
            yield Check(full)
            continue
        more, less = (_average(r.record["factors"][kind][whose][-1] for r in results) for kind, whose in (one, other))
        yield decided(full, more > less, f"{more:.4f} against {less:.4f}")


def architectures(found: Collection, one: tuple[str, str], other: tuple[str, str], word: str) -> Iterator[Check]:
    """(method, head) against (method, head) of both networks, after many epochs and few; "" stands for each head."""
    for model in ("resnet9", "resnet18"):
        for head in HEADS if not one[1] else [""]:
            first, second = (("architectures", f"{model}-{own or head}", method) for method, own in (one, other))
            names = [f"{title(method)} {setting}" for _, setting, method in (first, second)]
            for label, round in ROUND_AFTER.items():
                text = f"{names[0]} minus {names[1]}, {label}"
                yield compared(found, text, first, second, word, round=round)


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
    """Factorised networks about as small as the claim has it, with and without L1's gradient, against the regular."""
    regular = sparsity_results(found, None, True)
    whole = published()["sparsity"]["regular"]["millions"]
    for l1, ending in ((True, ""), (False, ", no gradient of L1")):
        for value in LAMBDAS:
            results = sparsity_results(found, value, l1)
            millions = model_millions(results[0]) if results else None
            text = f"factorised at lambda {value:g}{ending}"
            if millions is None:
                yield Check(f"{text}, minus regular")
            elif HALF * whole < millions <= FEWER * whole * (1 + SIZE_TOLERANCE):
                yield judged(f"{text}, {millions:.3f} M, minus regular", difference(results, regular), "more")


def small_on_domains(found: Collection) -> Iterator[Check]:
    """Factorised networks as small as the appendix says against its best baseline, on the domains."""
    baseline = found.of("domains", "domains", "per-fedavg")
    for name, results in _of_size(found, HALF, MOST_LEFT):
        yield judged(f"{name}, minus Per-FedAvg, domains", difference(results, baseline), "more")


def too_small_on_domains(found: Collection, least: float) -> Iterator[Check]:
    """Networks of which less than half is left against one that is pruned little, with L1's gradient as they are."""
    for name, results in _of_size(found, 0.0, HALF):
        if results and not results[0].configuration["options"]["l1"]:
            whole = ("departures", "domains", "factorized-fl+no-l1")
        else:
            whole = ("sparsity", "domains", f"factorized-fl+lambda={min(LAMBDAS):g}")
        gap = difference(results, found.of(*whole))
        yield judged(f"{name}, minus {title(whole[2])}, domains", gap, "less", least)


def _of_size(found: Collection, least: float, most: float) -> Iterator[tuple[str, Sequence[Result]]]:
    """The factorised networks on the domains with such a share of the regular parameters, or of a size yet unknown."""
    regular = published()["sparsity"]["regular"]["millions"]
    for cell in STUDIES["sparsity"].shown:
        if cell.method == "factorized-fl" and cell.preset == DOMAINS:
            results = found.get(cell)
            millions = model_millions(results[0]) if results else None
            if millions is None:
                yield title(cell.row), ()
            elif least * regular < millions <= most * regular:
                yield f"{title(cell.row)}, {millions:.3f} M", results


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
            first = _average(run["u"]["epoch"][0][0] for run in runs)
            u, v = (_average(row[0] for run in runs for row in run[kind]["epoch"][-LAST:]) for kind in ("u", "v"))
            if kind == "u":
                yield decided(text, u < first, f"{first:.3f} in the first epoch, {u:.3f} in the last {LAST}")
            else:
                yield decided(text, v > u, f"{v:.3f} against {u:.3f} in the last {LAST}")


def _average(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _data(what: str) -> str:
    return {"label-cifar10": "CIFAR-10", "label-svhn": "SVHN", "domains": "domains"}[what]


def more_layers(found: Collection, method: str, word: str) -> Iterator[Check]:
    """A second fully connected layer against none."""
    for head in ("2fc-norm", "2fc"):
        yield from architectures(found, (method, head), (method, "1fc"), word)
