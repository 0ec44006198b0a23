"""The paper's figures from our results. Needs matplotlib: pip install "factorized-fl[figures]"."""

import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.figures import settle
from factorized_fl.reproduce.beyond import ROWS
from factorized_fl.reproduce.cells import Result
from factorized_fl.reproduce.collection import Collection, bytes_sent, mean, mean_curve, model_millions
from factorized_fl.reproduce.names import title
from factorized_fl.reproduce.studies import DOMAIN_METHODS, LABEL_METHODS, STUDIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "stand-alone": "#777777",
    "fedavg": "#1f77b4",
    "factorized-fl": "#d62728",
    "factorized-fl-beta": "#ff7f0e",
    "pfedpara": "#2ca02c",
    "fedprox": "#17becf",
    "clustered-fl": "#9467bd",
    "per-fedavg": "#8c564b",
    "fedfomo": "#bcbd22",
    "factorized-fedavg": "#17becf",
    "without-mu": "#777777",
    "random-matching": "#2ca02c",
    "worst-matching": "#9467bd",
    "factorized-fl+three-best": "#8c564b",
}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "factorized-fl",  # or the same figure would have other identifiers each time
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Drawing:
    """A figure: what it shows, whether the results for it are there, and how it is drawn."""

    name: str
    caption: str
    size: tuple[float, float]
    ready: Callable[[Collection], bool]
    draw: Callable[[Collection, "Figure"], None]


def drawings(found: Collection) -> list[Drawing]:
    """The figures that the results allow."""
    return [drawing for drawing in _all() if drawing.ready(found)]


def draw_all(found: Collection, folder: Path) -> list[Path]:
    """Draw every figure that the results allow; the same results give the same files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('Figures need matplotlib: pip install "factorized-fl[figures]".') from None
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in drawings(found):
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=drawing.size, layout="constrained")
            drawing.draw(found, figure)
            settle(figure)
            content = io.BytesIO()
            figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        path = folder / f"{drawing.name}.svg"
        write_atomically(path, content.getvalue())
        paths.append(path)
    return paths


# -- curves


def _curves(axes: Any, runs: dict[str, list[Result]], over_bytes: bool) -> None:
    if not runs:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, horizontalalignment="center")
        return
    for row, results in runs.items():
        accuracy = mean_curve(results)
        x = bytes_sent(results) / 1e9 if over_bytes else np.arange(1, len(accuracy) + 1)
        if over_bytes and not x[-1]:
            continue  # who never communicates has no place here
        axes.plot(x, accuracy, label=title(row), color=_COLOURS.get(row), linewidth=1)
    axes.set_xlabel("gigabytes sent" if over_bytes else "round")
    if over_bytes:
        axes.set_xscale("log")
    axes.set_ylabel("accuracy, %")


def _legend(figure: "Figure", axes: Any) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)


def _domain_runs(found: Collection) -> dict[str, list[Result]]:
    runs = {method: found.of("domains", "domains", method) for method in DOMAIN_METHODS}
    return {row: results for row, results in runs.items() if results}


def _domain_curves(found: Collection, figure: "Figure") -> None:
    axes = figure.subplots(1, 2, sharey=True)
    for part, over_bytes in zip(axes, (False, True), strict=True):
        _curves(part, _domain_runs(found), over_bytes)
    _legend(figure, axes[0])


def _label_runs(found: Collection, what: str, setting: str) -> dict[str, list[Result]]:
    runs = {method: found.of(what, setting, method) for method in LABEL_METHODS}
    return {row: results for row, results in runs.items() if results}


def _label_curves(what: str, found: Collection, figure: "Figure") -> None:
    settings = ("standard-iid", "permuted-iid", "standard-non-iid", "permuted-non-iid")
    axes = figure.subplots(2, 4)
    for column, setting in enumerate(settings):
        for line, over_bytes in enumerate((False, True)):
            _curves(axes[line, column], _label_runs(found, what, setting), over_bytes)
        axes[0, column].set_title(setting)
    fullest = max(axes[0], key=lambda part: len(part.get_lines()))
    _legend(figure, fullest)


def _ablation_runs(found: Collection) -> dict[str, list[Result]]:
    study = STUDIES["ablation"]
    runs = {cell.row: found.get(cell) for cell in study.shown}
    return {row: results for row, results in runs.items() if results}


def _ablation(found: Collection, figure: "Figure") -> None:
    axes = figure.subplots()
    _curves(axes, _ablation_runs(found), over_bytes=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)


# -- bars, heat-maps, points


def _bars(found: Collection, figure: "Figure") -> None:
    runs = _domain_runs(found)
    axes = figure.subplots(5, 1, sharex=True)
    clients = np.arange(len(next(iter(runs.values()))[0].domains))
    groups = np.array_split(clients, 5)
    width = 0.8 / len(runs)
    lowest = 100 * min(accuracy for results in runs.values() for result in results for accuracy in result.accuracies())
    for part, group in zip(axes, groups, strict=True):
        for index, (row, results) in enumerate(runs.items()):
            values = 100 * np.mean([result.accuracies() for result in results], axis=0)
            places = np.arange(len(group)) + index * width
            part.bar(places, values[group], width, label=title(row), color=_COLOURS.get(row))
        part.set_ylabel(next(iter(runs.values()))[0].domains[group[0]])
        part.set_ylim(bottom=lowest - 5)
        for position, client in enumerate(group):
            part.text(position - width / 2, lowest - 4.5, str(client + 1), fontsize=6)
    axes[-1].set_xticks([])
    _legend(figure, axes[0])


def _heat_maps(found: Collection, figure: "Figure") -> None:
    cells = [cell for cell in STUDIES["similarity"].shown if found.get(cell)]
    parts = figure.subfigures(len(cells), 1, squeeze=False)[:, 0]
    for part, cell in zip(parts, cells, strict=True):
        record = found.get(cell)[0].record
        part.suptitle(title(cell.row) if cell.variant else f"{title(cell.row)} (the paper's layout)", fontsize=8)
        axes = part.subplots(2, 6)
        for line, kind in enumerate(("u", "v")):
            for column, (round, matrix) in enumerate(record["factors"][kind]["matrices"].items()):
                _picture(axes[line, column], _without_diagonal(matrix), f"{kind}, round {round}")
            for part_left_over in axes[line, len(record["factors"][kind]["matrices"]) : 5]:
                part_left_over.axis("off")
        _picture(axes[0, 5], np.array(record["mixing"]["matched"], dtype=float), "rounds matched")
        _picture(axes[1, 5], _without_diagonal(record["mixing"]["weight"]), "mean weight")


def _peer_runs(found: Collection) -> dict[str, Result]:
    """Who mixes with whom: the paper's two methods and ours, first seed."""
    runs = {row: found.of("domains", "domains", row) for row in ("factorized-fl", "factorized-fl-beta")}
    ours = [row for row in ROWS if found.of("beyond", "domains", row)][:1]
    runs |= {row: found.of("beyond", "domains", row) for row in ours}
    return {row: results[0] for row, results in runs.items() if results}


def _peers(found: Collection, figure: "Figure") -> None:
    runs = _peer_runs(found)
    for axes, (row, result) in zip(figure.subplots(1, len(runs)), runs.items(), strict=True):
        _picture(axes, np.array(result.record["mixing"]["weight"]), title(row))


def _without_diagonal(matrix: Sequence[Sequence[float]]) -> np.ndarray:
    shown = np.array(matrix, dtype=float)
    np.fill_diagonal(shown, np.nan)
    return shown


def _picture(axes: Any, matrix: np.ndarray, name: str) -> None:
    axes.imshow(matrix, cmap="Blues", interpolation="nearest")
    low, high = np.nanmin(matrix), np.nanmax(matrix)
    axes.set_title(f"{name}\n{low:.4g} to {high:.4g}", fontsize=6)
    axes.set_xticks([])
    axes.set_yticks([])


def _sizes(found: Collection, figure: "Figure") -> None:
    axes = figure.subplots(1, 2)
    for part, (setting, name) in zip(axes, (("single-client", "a single client"), ("domains", "domains")), strict=True):
        for l1, marker, label in ((True, "o", "gradient of L1"), (False, "x", "no gradient")):
            points = _size_points(found, setting, l1)
            if points:
                part.plot(*zip(*sorted(points), strict=True), marker=marker, linewidth=0.8, label=label)
        part.set_title(name)
        part.set_xlabel("millions of parameters")
        part.set_ylabel("accuracy, %")
    _legend(figure, axes[0])


def _size_points(found: Collection, setting: str, l1: bool) -> list[tuple[float, float]]:
    points = []
    study = STUDIES["sparsity"]
    for cell in study.shown:
        on_domains = cell.preset.startswith("cifar100")
        if on_domains != (setting == "domains") or cell.method != "factorized-fl":
            continue
        results = found.get(cell)
        if results and results[0].configuration["options"]["l1"] is l1:
            sizes, accuracy = [model_millions(result) for result in results], mean(results)
            assert accuracy is not None
            points.append((statistics.fmean(size for size in sizes if size is not None), accuracy.value))
    return points


def _heterogeneity(found: Collection, figure: "Figure") -> None:
    record = found.heterogeneity[0]
    others = record["parties"][1:]
    axes = figure.subplots(1, 4)
    distances = np.array(record["dense"]["body"]["total"])
    for index, party in enumerate(others):
        axes[0].plot(np.arange(1, len(distances) + 1), distances[:, index], label=party, linewidth=1)
        averaged = np.array(record["averaged"][party]["all"])[:, 1]
        epochs = record["average_every"] * np.arange(1, len(averaged) + 1)
        axes[1].plot(epochs, 100 * averaged / record["tests"], label=party, linewidth=1)
    axes[0].set_title("updates")
    axes[1].set_title("averages, on partition 1")
    axes[1].set_ylabel("accuracy, %")
    for part, party in zip(axes[2:], others[1:], strict=True):
        for kind, style in (("u", "-"), ("v", "--")):
            together = np.array(record["factorised_together"][party][kind]["epoch"])[:, 0]
            part.plot(np.arange(1, len(together) + 1), together, style, color="black", label=kind, linewidth=1)
        part.set_title(f"u and v: {party}")
        part.legend(frameon=False)
    for part in (axes[0], *axes[2:]):
        part.set_ylabel("distance")
    for part in axes:
        part.set_xlabel("epoch")
    _legend(figure, axes[0])


def _all() -> list[Drawing]:
    curves = "Accuracy over rounds and over bytes sent (as serialised, both ways), mean over clients and seeds"
    drawings = [
        Drawing("domains", f"{curves}: domains.", (7.5, 3.2), lambda found: bool(_domain_runs(found)), _domain_curves),
        Drawing(
            "domains-clients",
            "Accuracy in percent of each of the 20 clients, by domain; bars do not begin at zero.",
            (7.5, 7.0),
            lambda found: bool(_domain_runs(found)),
            _bars,
        ),
    ]
    for what in ("label-cifar10", "label-svhn"):
        drawings.append(
            Drawing(
                what,
                f"{curves}: {what.removeprefix('label-')}.",
                (10.0, 4.8),
                lambda found, what=what: any(key[0] == what for key in found.cells),  # type: ignore[misc]
                lambda found, figure, what=what: _label_curves(what, found, figure),  # type: ignore[misc]
            )
        )
    return [
        *drawings,
        Drawing(
            "ablation",
            "Ablations on the domains: accuracy over rounds.",
            (7.0, 3.0),
            lambda found: any(key[0] == "ablation" for key in found.cells),
            _ablation,
        ),
        Drawing(
            "similarity",
            "Cosines between the clients' u and v before the classifier, first seed; each picture has its own scale, "
            "given above it. Right: how often clients were matched, and the mean weight they had.",
            (9.0, 8.0),
            lambda found: any(found.get(cell) for cell in STUDIES["similarity"].shown),
            _heat_maps,
        ),
        Drawing(
            "peers",
            "Mean weight that each client (row) gives to each (column) on the domains, first seed; clients of one "
            "domain stand together. Each picture has its own scale, given above it.",
            (7.0, 2.8),
            lambda found: len(runs := _peer_runs(found)) > 1 and any(row in runs for row in ROWS),
            _peers,
        ),
        Drawing(
            "sparsity",
            "Accuracy over the size of the factorised network, by lambda.",
            (7.0, 3.0),
            lambda found: any(key[0] == "sparsity" for key in found.cells),
            _sizes,
        ),
        Drawing(
            "heterogeneity",
            "Distance of updates from those on MNIST partition 1; accuracy of averaged models, classifiers included; "
            "distances of one epoch's updates while u is averaged.",
            (11.0, 3.0),
            lambda found: bool(found.heterogeneity),
            _heterogeneity,
        ),
    ]
