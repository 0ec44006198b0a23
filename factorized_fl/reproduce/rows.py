"""Our numbers beside the paper's: rows that a table, a program and the document all read."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from factorized_fl.reproduce.cells import Cell, Result
from factorized_fl.reproduce.collection import Collection, formula_gigabytes, mean, model_millions, total_bytes
from factorized_fl.reproduce.departures import origin
from factorized_fl.reproduce.predictions import Predictions, beside_published
from factorized_fl.reproduce.published import AVERAGE, published, published_mean
from factorized_fl.reproduce.studies import LAMBDAS, STUDIES

# How long a single client trains, and after which round that is: none for the last. The paper states 20 epochs.
ALL_EPOCHS, FEW_EPOCHS = "250 epochs", "20 epochs"
ROUND_AFTER: dict[str, int | None] = {ALL_EPOCHS: None, FEW_EPOCHS: 4}


@dataclass(frozen=True)
class Row:
    """One number: what the paper printed and what we found, if either."""

    what: str
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


def rows_of(what: str, found: Collection) -> list[Row]:
    """All rows of a study, cells that were not run included."""
    if what.startswith("label-"):
        return list(_label(what, found))
    makers = {
        "domains": _domains,
        "architectures": _architectures,
        "sparsity": _sparsity,
        "similarity": _similarity,
        "heterogeneity": _heterogeneity,
        "departures": _departures,
        "draws": _draws,
    }
    maker = makers.get(what)
    return list(maker(found)) if maker else [_plain(cell, found) for cell in STUDIES[what].shown]


def _plain(cell: Cell, found: Collection, paper: list[float] | None = None, paper_gb: float | None = None) -> Row:
    results = found.get(cell)
    ours = mean(results)
    return Row(
        what=cell.what,
        setting=cell.setting,
        method=cell.row,
        paper=paper[0] if paper else None,
        paper_spread=paper[1] if paper and len(paper) > 1 else None,
        ours=ours.value if ours else None,
        spread=ours.spread if ours else None,
        seeds=ours.seeds if ours else (),
        bytes=total_bytes(results),
        formula_gb=formula_gigabytes(results),
        paper_gb=paper_gb,
    )


def _label(what: str, found: Collection) -> Iterator[Row]:
    for method, table in published()[what].items():
        for cell in STUDIES[what].own:
            if cell.method == method:
                yield _plain(cell, found, table[cell.setting], paper_gb=table.get("cost"))


def _domains(found: Collection) -> Iterator[Row]:
    table = published()["domains"]
    for method in [*table, *(cell.method for cell in STUDIES["domains"].own if cell.method not in table)]:
        results = found.of("domains", "domains", method)
        columns = {place: value for place, value in table.get(method, {}).items() if place != "cost"}
        for place in columns or [*next(iter(table.values()))]:
            paper = columns.get(place)
            ours = mean(results, None if place == AVERAGE else place)
            average = place == AVERAGE
            yield Row(
                what="domains",
                setting=place,
                method=method,
                paper=paper[0] if paper else None,
                paper_spread=paper[1] if paper else None,
                ours=ours.value if ours else None,
                spread=ours.spread if ours else None,
                seeds=ours.seeds if ours else (),
                bytes=total_bytes(results) if average else None,
                formula_gb=formula_gigabytes(results) if average else None,
                paper_gb=table.get(method, {}).get("cost") if average else None,
            )


def _architectures(found: Collection) -> Iterator[Row]:
    for cell in STUDIES["architectures"].own:
        paper = published()["architectures"][cell.setting][cell.method]
        for label, round in ROUND_AFTER.items():
            ours = mean(found.get(cell), round=round)
            yield Row(
                what="architectures",
                setting=f"{cell.setting}, {label}",
                method=cell.method,
                paper=paper,
                ours=ours.value if ours else None,
                spread=ours.spread if ours else None,
                seeds=ours.seeds if ours else (),
            )


def sparsity_results(found: Collection, value: float | None, l1: bool) -> list[Result]:
    """The single client's runs with a lambda; none of it is the regular model."""
    if value is None:
        return found.of("architectures", "resnet9-1fc", "stand-alone")
    if value == 5e-4 and l1:
        return found.of("architectures", "resnet9-1fc", "factorized-fl")
    return found.of("sparsity", "single-client", f"factorized-fl+lambda={value:g}{'' if l1 else ',no-l1'}")


def _sparsity(found: Collection) -> Iterator[Row]:
    cases: list[tuple[float | None, bool]] = [(None, True)]
    cases += [(value, l1) for l1 in (True, False) for value in LAMBDAS]
    for value, l1 in cases:
        paper = published()["sparsity"]["regular" if value is None else f"lambda={value:g}"]
        results = sparsity_results(found, value, l1)
        name = "regular" if value is None else f"lambda={value:g}" + ("" if l1 else ", no gradient of L1")
        for label, round in ROUND_AFTER.items():
            ours = mean(results, round=round)
            seeds = ours.seeds if ours else ()
            yield Row(
                "sparsity",
                f"accuracy, {label}",
                name,
                paper["accuracy"],
                ours=ours.value if ours else None,
                spread=ours.spread if ours else None,
                seeds=seeds,
            )
            sizes = [size for result in results if (size := model_millions(result, round)) is not None]
            if value is not None:
                size = statistics.fmean(sizes) if sizes else None
                yield Row("sparsity", f"millions, {label}", name, paper["millions"], ours=size, seeds=seeds, unit="M")
    for cell in STUDIES["sparsity"].shown:
        if cell.preset.startswith("cifar100"):
            yield replace(_plain(cell, found), what="sparsity", setting="accuracy, domains")
            sizes = [size for result in found.get(cell) if (size := model_millions(result)) is not None]
            if sizes:
                seeds = tuple(result.seed for result in found.get(cell))
                size = statistics.fmean(sizes)
                yield Row("sparsity", "millions, domains", cell.row, ours=size, seeds=seeds, unit="M")


def _similarity(found: Collection) -> Iterator[Row]:
    for cell in STUDIES["similarity"].shown:
        results = found.get(cell)
        seeds = tuple(result.seed for result in results)
        for kind in ("u", "v"):
            for label, name in (
                ("mean cosine, own domain", "same"),
                ("mean cosine, other domains", "other"),
                ("own domain among the nearest", "found"),
            ):
                for round in (1, 100):
                    values = [result.record["factors"][kind][name][min(round, result.rounds) - 1] for result in results]
                    value = statistics.fmean(values) if values else None
                    setting = f"{kind}, round {round}: {label}"
                    yield Row("similarity", setting, cell.row, ours=value, seeds=seeds, unit="")


def _heterogeneity(found: Collection) -> Iterator[Row]:
    records = found.heterogeneity
    seeds = tuple(record["seed"] for record in records)
    parties = records[0]["parties"][1:] if records else ("partition 2", "partition 2, permuted", "CIFAR-10")
    for model, kinds in (("dense", ("body",)), ("factorised", ("u", "v", "mu"))):
        for kind in kinds:
            for index, party in enumerate(parties):
                for label, position in (("first epoch", 0), ("last epoch", -1)):
                    values = [record[model][kind]["total"][position][index] for record in records]
                    value = statistics.fmean(values) if values else None
                    yield Row("heterogeneity", f"{label}: {kind}", party, ours=value, seeds=seeds, unit="")
    for name, part in (("accuracy of averages", "all"), ("accuracy of averages without classifiers", "body")):
        for party in parties:
            times = [[100 * row[1] / record["tests"] for row in record["averaged"][party][part]] for record in records]
            mean_of = statistics.fmean(map(statistics.fmean, times)) if times else None
            last = statistics.fmean(values[-1] for values in times) if times else None
            yield Row("heterogeneity", f"{name}, mean", party, ours=mean_of, seeds=seeds)
            yield Row("heterogeneity", f"{name}, last", party, ours=last, seeds=seeds)


def _departures(found: Collection) -> Iterator[Row]:
    for cell in STUDIES["departures"].shown:
        what, setting = origin(cell)
        shown = setting if what == "domains" else cell.setting
        row = _plain(cell, found, published_mean(what, setting, cell.method))
        yield replace(row, what="departures", setting=shown)


def _draws(found: Collection) -> Iterator[Row]:
    for one in beside_published(Predictions(found)):
        ours, spread = (one.predicted.mean, one.predicted.spread) if one.predicted else (None, None)
        yield Row("draws", f"{one.where}, predicted", one.place[2], paper=one.paper, ours=ours, spread=spread)
