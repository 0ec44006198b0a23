"""The studies: for each of the paper's tables and figures the list of its cells, the most important first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from factorized_fl.core.errors import unknown
from factorized_fl.reproduce.cells import Cell
from factorized_fl.reproduce.choices import DOMAINS, choice_cells
from factorized_fl.reproduce.departures import departure_cells

# In the order in which they are run: what the claims need first comes first.
LABEL_METHODS = (
    *("stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "pfedpara"),
    *("fedprox", "clustered-fl", "per-fedavg", "fedfomo"),
)
DOMAIN_METHODS = (
    *("stand-alone", "fedavg", "factorized-fl", "factorized-fl-beta", "per-fedavg"),
    *("pfedpara", "clustered-fl", "fedfomo", "fedprox"),
)
ABLATIONS = ("factorized-fedavg", "without-mu", "random-matching", "worst-matching")


@dataclass(frozen=True)
class Study:
    """A table or figure: its own cells with the first seed, those it borrows from other studies, and its seeds."""

    name: str
    title: str
    own: tuple[Cell, ...]
    borrowed: tuple[Cell, ...] = ()
    seeds: tuple[int, ...] = (1,)

    @property
    def shown(self) -> tuple[Cell, ...]:
        """All cells that it shows, borrowed and own."""
        return (*self.borrowed, *self.own)

    def cells(self, seeds: Iterable[int] | None = None) -> list[Cell]:
        """All cells in the order in which to run them: every first seed before any second one."""
        wanted = tuple(seeds or self.seeds)
        return [replace(cell, seed=seed) for seed in wanted for cell in self.shown]


def _label(dataset: str, title: str) -> Study:
    what = f"label-{dataset}"
    cells = [
        Cell(
            what, f"{labels}-{partition}", method, f"{dataset}-{'permuted-' if labels == 'permuted' else ''}{partition}"
        )
        for labels in ("permuted", "standard")
        for method in LABEL_METHODS
        for partition in ("iid", "non-iid")
    ]
    return Study(what, title, tuple(cells))


def _domains() -> Study:
    cells = [Cell("domains", "domains", method, DOMAINS) for method in DOMAIN_METHODS]
    return Study("domains", "Table 1, bottom: five domains of CIFAR-100", tuple(cells), seeds=(1, 2, 3))


def _ablation(domains: Study) -> Study:
    cells = [Cell("ablation", "ablation", method, DOMAINS) for method in ABLATIONS]
    # Random and worst matching take three others; so does this, where tau alone would take nearly everybody.
    three = Cell(
        "ablation", "ablation", "factorized-fl", DOMAINS, variant="three-best", settings={"tau": 1.0, "minimum": 4}
    )
    # Nobody but oneself is as similar as that: what factorised weights do by themselves, with both layouts.
    alone = [
        _with("ablation", "ablation", "factorized-fl", DOMAINS, "alone", tau=1.0),
        _with("ablation", "ablation", "factorized-fl", f"{DOMAINS}-released", "released+alone", tau=1.0, minimum=1),
    ]
    borrowed = _pick(domains, "fedavg", "factorized-fl", "factorized-fl-beta")
    own = (*cells, three, *alone)
    return Study("ablation", "Figure 8 (g): ablations on the domains", own, borrowed, seeds=(1, 2, 3))


def _similarity(domains: Study) -> Study:
    released = Cell("similarity", "similarity", "factorized-fl", f"{DOMAINS}-released", variant="released")
    layout = _with("similarity", "similarity", "factorized-fl", DOMAINS, "released-layout", layout="released")
    borrowed = _pick(domains, "factorized-fl")
    return Study("similarity", "Figure 8 (a-f): how alike the clients' u and v are", (released, layout), borrowed)


# What makes the five domains hard: unequal groups, unequal shares of the classes, one client whose labels are drawn.
HARD: dict[str, dict[str, Any]] = {
    "domains-unequal": {"clients_per_domain": (1, 2, 3, 6, 8)},
    "domains-dirichlet": {"partition": "dirichlet"},
    "domains-random-labels": {"scrambled": 1},
}


def _beyond(labels: Study, domains: Study) -> Study:
    """Our own method beside what it has to beat; last, what settling statistics does without it and it without that."""
    own, what = "factorized-peers", "beyond"
    cells, controls = [Cell(what, "domains", own, DOMAINS)], []
    borrowed = list(_pick(domains, "stand-alone", "factorized-fl", "factorized-fl-beta"))
    for setting, rivals in (
        ("permuted-iid", ("factorized-fl-beta", "fedavg")),
        ("permuted-non-iid", ("factorized-fl-beta", "fedavg")),
        ("standard-iid", ("fedavg",)),
    ):
        beside = [c for rival in rivals for c in labels.own if (c.setting, c.method) == (setting, rival)]
        borrowed += beside
        cells.append(Cell(what, setting, own, beside[0].preset))
        controls.append(_with(what, setting, rivals[0], beside[0].preset, "settled", settle=True))
    for setting, change in HARD.items():
        # Who trains alone does not notice somebody else's random labels.
        methods = (own,) if "scrambled" in change else ("stand-alone", own)
        cells += [Cell(what, setting, method, DOMAINS, settings=change) for method in methods]
    for method, name, settle in (
        *(("stand-alone", "settled", True), ("factorized-fl-beta", "settled", True)),
        (own, "not-settled", False),
    ):
        cells.append(_with(what, "domains", method, DOMAINS, name, settle=settle))
    title = "Beyond the paper: peers found by what their images look like"
    return Study(what, title, (*cells, *controls), tuple(borrowed), (1, 2))


def _departures(similarity: Study, architectures: Study) -> Study:
    """The cells of the departures, but for those that the study of similarity has already."""
    elsewhere = {(cell.preset, cell.row) for cell in similarity.own}
    own = tuple(cell for cell in departure_cells(architectures.own) if (cell.preset, cell.row) not in elsewhere)
    return Study("departures", "Which departure or open choice explains which difference", own, similarity.own)


# A single client that trains alone on as many images as a client of the label studies has; `epochs` 20 and 250 of the
# paper's single-client experiments are rounds 4 and 50 of the same run, for nothing is mixed between rounds.
SINGLE = {"clients": 1, "images_per_client": 2400}
HEADS = {"1fc": {}, "2fc-norm": {"head_layers": 2, "head_norm": True}, "2fc": {"head_layers": 2}}
KERNELS = ("stand-alone", "mixed-layout", "factorized-fl")  # regular, I*F x O*F, F*F x I*O
LAMBDAS = (1e-4, 3e-4, 5e-4, 7e-4, 1e-3)


def _architectures() -> Study:
    cells = [
        Cell("architectures", f"{model}-{head}", method, "cifar10-iid", settings={**SINGLE, "model": model, **options})
        for model in ("resnet9", "resnet18")
        for head, options in HEADS.items()
        for method in KERNELS
    ]
    return Study("architectures", "Figure 8 (h): networks and classifiers, a single client", tuple(cells))


def _sparsity(architectures: Study, domains: Study, departures: Study) -> Study:
    """Lambda 5e-4 is what the other studies have. Without a gradient of L1 only the pruning threshold is left."""
    cells = []
    for l1, ending in ((True, ""), (False, ",no-l1")):
        for value in LAMBDAS:
            if value != 5e-4 or not l1:
                settings = {**SINGLE, "sparsity": value, "l1": l1}
                variant = f"lambda={value:g}{ending}"
                cells.append(_with("sparsity", "single-client", "factorized-fl", "cifar10-iid", variant, **settings))
    for value, l1 in ((1e-4, True), (3e-4, True), (1e-3, True), (1e-3, False), (3e-3, False)):
        variant = f"lambda={value:g}" + ("" if l1 else ",no-l1")
        cells.append(_with("sparsity", "domains", "factorized-fl", DOMAINS, variant, sparsity=value, l1=l1))
    borrowed = [cell for cell in architectures.own if cell.setting == "resnet9-1fc" and cell.method != "mixed-layout"]
    borrowed += _pick(domains, "factorized-fl", "per-fedavg", "fedavg", "clustered-fl")
    borrowed += [cell for cell in departures.own if (cell.setting, cell.row) == ("domains", "factorized-fl+no-l1")]
    return Study("sparsity", "Figure 8 (i) and appendix: accuracy over model size", tuple(cells), tuple(borrowed))


def _with(what: str, setting: str, method: str, preset: str, variant: str, **settings: Any) -> Cell:
    return Cell(what, setting, method, preset, variant=variant, settings=settings)


def _pick(study: Study, *rows: str) -> tuple[Cell, ...]:
    """Some of a study's cells, for another one to borrow."""
    return tuple(cell for row in rows for cell in study.own if cell.row == row)


def _all() -> dict[str, Study]:
    cifar10, domains = _label("cifar10", "Table 1, top: CIFAR-10"), _domains()
    similarity = _similarity(domains)
    architectures = _architectures()
    departures = _departures(similarity, architectures)
    studies = (
        Study("choices", "Short runs on validation images, for what the paper leaves open", choice_cells()),
        cifar10,
        _label("svhn", "Table 1, top: SVHN"),
        domains,
        _ablation(domains),
        similarity,
        architectures,
        _sparsity(architectures, domains, departures),
        Study("heterogeneity", "Figures 2 and 4: how far updates are apart", ()),
        departures,
        Study("draws", "What other draws of the non-IID shares would bring, predicted", ()),
        _beyond(cifar10, domains),
    )
    return {study.name: study for study in studies}


STUDIES: dict[str, Study] = _all()


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def select(
    names: Sequence[str],
    seeds: Sequence[int] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[Cell]:
    """The cells of some studies, in order, each once; narrowed to some methods or settings if any are given.

    Choices come first, for the others heed them.
    """
    found: dict[str, Cell] = {}
    for name in sorted(names, key=lambda name: name != "choices"):
        for cell in find_study(name).cells(seeds):
            found.setdefault(cell.name, cell)
    for given, of in ((methods, _method), (settings, _setting)):
        known = {word for cell in found.values() for word in of(cell)}
        for word in given:
            if word not in known:
                raise unknown("method" if of is _method else "setting", word, known)
        found = {name: cell for name, cell in found.items() if not given or set(of(cell)) & set(given)}
    return list(found.values())


def _method(cell: Cell) -> set[str]:
    return {cell.method, cell.row}


def _setting(cell: Cell) -> set[str]:
    return {cell.setting}
