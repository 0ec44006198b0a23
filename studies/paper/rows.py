"""Our numbers beside the paper's: the rows that the page, a terminal and a program show."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from studies.paper.cells import Cell, Key, named_list
from studies.paper.grid import STUDIES, origin
from studies.paper.predictions import Predictions, beside_published
from studies.paper.published import AVERAGE, published, published_mean
from studies.paper.runs import Run, formula_gigabytes, mean_accuracy, mean_millions, total_bytes
from studies.paper.table import Table

# How long a single client trains, and after which round that is: None for the last. The paper states 20 epochs.
ALL_EPOCHS, FEW_EPOCHS = "250 epochs", "20 epochs"
ROUND_AFTER: dict[str, int | None] = {ALL_EPOCHS: None, FEW_EPOCHS: 4}


@dataclass(frozen=True)
class Row:
    """One number: what the paper printed and what we found, if either."""

    study: str
    setting: str
    method: str
    paper: float | None = None
    paper_spread: float | None = None
    ours: float | None = None
    spread: float | None = None  # between seeds
    seeds: tuple[int, ...] = ()
    bytes: float | None = None  # of a whole run, as serialised, both ways
    formula_gb: float | None = None  # by the paper's formula, without the first download
    paper_gb: float | None = None
    unit: str = "%"

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper


def rows_of(study: str, table: Table) -> list[Row]:
    """Return all rows of a study, cells that were not run included."""
    makers: dict[str, Callable[[Table], Iterator[Row]]] = {
        "domains": _domains,
        "architectures": _architectures,
        "sparsity": _sparsity,
        "similarity": _similarity,
        "heterogeneity": _heterogeneity,
        "departures": _departures,
        "draws": _draws,
    }
    if study.startswith("label-"):
        return list(_labels(study, table))
    return list(makers[study](table)) if study in makers else [_of_cell(cell, table) for cell in STUDIES[study].shown]


def all_rows(table: Table) -> dict[str, list[Row]]:
    """Return the rows of all studies."""
    return {name: rows_of(name, table) for name in STUDIES}


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows for a program; what was not run is None."""
    return [
        {name: round(item, 6) if isinstance(item, float) else item for name, item in asdict(row).items()}
        | {"seeds": list(row.seeds)}
        for row in rows
    ]


def _accuracy(
    key: Key,
    runs: Sequence[Run],
    paper: Sequence[float] | None = None,
    *,
    domain: str | None = None,
    after: int | None = None,
    costs: bool = False,
    paper_gb: float | None = None,
) -> Row:
    ours = mean_accuracy(runs, domain, after)
    numbers = {"ours": ours.value, "spread": ours.spread, "seeds": ours.seeds} if ours else {}
    sent = {"bytes": total_bytes(runs), "formula_gb": formula_gigabytes(runs), "paper_gb": paper_gb} if costs else {}
    mean, spread = (*(paper or ()), None, None)[:2]
    return Row(*key, mean, spread, **numbers, **sent)  # type: ignore[arg-type]


def _of_cell(cell: Cell, table: Table, paper: Sequence[float] | None = None, paper_gb: float | None = None) -> Row:
    return _accuracy(cell.key, table.get(cell), paper, costs=True, paper_gb=paper_gb)


def _labels(study: str, table: Table) -> Iterator[Row]:
    for method, papers in published()[study].items():
        for cell in STUDIES[study].own:
            if cell.method == method:
                yield _of_cell(cell, table, papers[cell.setting], papers.get("cost"))


def _domains(table: Table) -> Iterator[Row]:
    papers = published()["domains"]
    places = [place for place in papers["stand-alone"] if place != "cost"]
    for method in dict.fromkeys([*papers, *(cell.method for cell in STUDIES["domains"].own)]):
        runs, paper = table.of("domains", "domains", method), papers.get(method, {})
        for place in places:
            domain = None if place == AVERAGE else place
            costs = {"costs": True, "paper_gb": paper.get("cost")} if place == AVERAGE else {}
            yield _accuracy(("domains", place, method), runs, paper.get(place), domain=domain, **costs)


def _architectures(table: Table) -> Iterator[Row]:
    for cell in STUDIES["architectures"].own:
        paper = published_mean(*cell.key)
        for label, after in ROUND_AFTER.items():
            key = ("architectures", f"{cell.setting}, {label}", cell.method)
            yield _accuracy(key, table.get(cell), paper, after=after)


def sparsity_key(value: float | None, l1: bool) -> Key:
    """Return the single client's cell with a lambda; None for the regular network."""
    if value is None or (value == 5e-4 and l1):
        return "architectures", "resnet9-1fc", "stand-alone" if value is None else "factorized-fl"
    return "sparsity", "single-client", f"factorized-fl+lambda={value:g}{'' if l1 else ',no-l1'}"


def _sparsity(table: Table) -> Iterator[Row]:
    cases: list[tuple[float | None, bool]] = [(None, True)]
    cases += [(value, l1) for l1 in (True, False) for value in named_list("lambdas")]
    for value, l1 in cases:
        paper = published()["sparsity"]["regular" if value is None else f"lambda={value:g}"]
        runs = table.of(*sparsity_key(value, l1))
        name = "regular" if value is None else f"lambda={value:g}" + ("" if l1 else ", no gradient of L1")
        for label, after in ROUND_AFTER.items():
            yield _accuracy(("sparsity", f"accuracy, {label}", name), runs, [paper["accuracy"]], after=after)
            if value is not None:
                yield _size(f"millions, {label}", name, runs, paper["millions"], after)
    for cell in STUDIES["sparsity"].shown:
        if cell.preset.startswith("cifar100"):
            yield replace(_of_cell(cell, table), study="sparsity", setting="accuracy, domains")
            if mean_millions(table.get(cell)) is not None:
                yield _size("millions, domains", cell.row, table.get(cell))


def _size(setting: str, name: str, runs: Sequence[Run], paper: float | None = None, after: int | None = None) -> Row:
    seeds = tuple(run.seed for run in runs)
    return Row("sparsity", setting, name, paper, ours=mean_millions(runs, after), seeds=seeds, unit="M")


def _similarity(table: Table) -> Iterator[Row]:
    quantities = {
        "mean cosine, own domain": "same",
        "mean cosine, other domains": "other",
        "own domain among the nearest": "found",
    }
    cases = [(kind, label, after) for kind in ("u", "v") for label in quantities for after in (1, 100)]
    for cell in STUDIES["similarity"].shown:
        runs = table.get(cell)
        for kind, label, after in cases:
            found = [run.record["factors"][kind][quantities[label]][min(after, run.rounds) - 1] for run in runs]
            yield _mean_row("similarity", f"{kind}, round {after}: {label}", cell.row, runs, found, "")


def _mean_row(
    study: str, setting: str, name: str, runs: Sequence[Run], values: Sequence[float], unit: str = "%"
) -> Row:
    seeds = tuple(run.seed for run in runs)
    return Row(study, setting, name, ours=statistics.fmean(values) if values else None, seeds=seeds, unit=unit)


def _heterogeneity(table: Table) -> Iterator[Row]:
    records = table.heterogeneity
    runs = [Run(record) for record in records]
    parties = records[0]["parties"][1:] if records else ("partition 2", "partition 2, permuted", "CIFAR-10")
    kinds = (("dense", "body"), *(("factorised", kind) for kind in ("u", "v", "mu")))
    for model, kind in kinds:
        for index, party in enumerate(parties):
            for label, position in (("first epoch", 0), ("last epoch", -1)):
                found = [record[model][kind]["total"][position][index] for record in records]
                yield _mean_row("heterogeneity", f"{label}: {kind}", party, runs, found, "")
    for name, part in (("accuracy of averages", "all"), ("accuracy of averages without classifiers", "body")):
        for party in parties:
            times = [[100 * row[1] / record["tests"] for row in record["averaged"][party][part]] for record in records]
            means, last = [statistics.fmean(each) for each in times], [each[-1] for each in times]
            yield _mean_row("heterogeneity", f"{name}, mean", party, runs, means)
            yield _mean_row("heterogeneity", f"{name}, last", party, runs, last)


def _departures(table: Table) -> Iterator[Row]:
    for cell in STUDIES["departures"].shown:
        study, setting = origin(cell)
        shown = setting if study == "domains" else cell.setting
        row = _of_cell(cell, table, published_mean(study, setting, cell.method))
        yield replace(row, study="departures", setting=shown)


def _draws(table: Table) -> Iterator[Row]:
    for one in beside_published(Predictions(table)):
        ours, spread = (one.predicted.mean, one.predicted.spread) if one.predicted else (None, None)
        yield Row("draws", f"{one.where}, predicted", one.key[2], paper=one.paper, ours=ours, spread=spread)
