"""The paper's figures from our results. Needs matplotlib: pip install "factorized-fl[figures]"."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.figures import settle
from studies.paper.cells import named_list, read_data, title
from studies.paper.grid import STUDIES
from studies.paper.runs import Run, bytes_by_round, mean_accuracy, mean_curve, mean_millions
from studies.paper.summaries import OWN
from studies.paper.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS = {
    "domains": ("domains",),
    **dict.fromkeys(
        ("label-cifar10", "label-svhn"), ("standard-iid", "permuted-iid", "standard-non-iid", "permuted-non-iid")
    ),
}
Runs = Mapping[str, list[Run]]  # by row


def ready_figures(table: Table) -> dict[str, str]:
    """Return the captions of the figures that the results allow, by name."""
    return {
        figure["name"]: figure["caption"]
        for figure in read_data("figures.toml")["figures"]
        if _ready(figure["name"], table)
    }


def _ready(name: str, table: Table) -> bool:
    if name == "heterogeneity":
        return bool(table.heterogeneity)
    if name == "peers":
        return len(_peer_runs(table)) > 1 and any(row.startswith(OWN) for row in _peer_runs(table))
    if name == "similarity":
        return any(map(table.get, STUDIES[name].shown))
    return any(key[0] == name.removesuffix("-clients") for key in table.cells)


def draw_all(table: Table, folder: Path) -> list[Path]:
    """Draw every figure that the results allow and return their paths; the same results give the same files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('Figures need matplotlib: pip install "factorized-fl[figures]".') from None
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for wanted in read_data("figures.toml")["figures"]:
        if not _ready(wanted["name"], table):
            continue
        with matplotlib.rc_context(read_data("figures.toml")["style"]):
            figure = Figure(figsize=wanted["size"], layout="constrained")
            DRAWINGS[wanted["draw"]](wanted["name"], table, figure)
            settle(figure)
            content = io.BytesIO()
            figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        paths.append(folder / f"{wanted['name']}.svg")
        write_atomically(paths[-1], content.getvalue())
    return paths


def _colour(row: str) -> str | None:
    return read_data("figures.toml")["colours"].get(row)


def _legend(figure: "Figure", axes: Any, place: str = "outside lower center", columns: int = 5) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc=place, ncols=columns, frameon=False)


def _runs(table: Table, study: str, setting: str) -> Runs:
    methods = named_list("domain-methods" if study == "domains" else "label-methods")
    return {method: runs for method in methods if (runs := table.of(study, setting, method))}


# -- curves


def _plot(axes: Any, several: Runs, over_bytes: bool) -> None:
    if not several:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, horizontalalignment="center")
        return
    for row, runs in several.items():
        accuracy = mean_curve(runs)
        x = bytes_by_round(runs) / 1e9 if over_bytes else np.arange(1, len(accuracy) + 1)
        if not over_bytes or x[-1]:  # a method without communication has no curve over bytes
            axes.plot(x, accuracy, label=title(row), color=_colour(row), linewidth=1)
    axes.set_xlabel("gigabytes sent" if over_bytes else "round")
    if over_bytes:
        axes.set_xscale("log")
    axes.set_ylabel("accuracy, %")


def curves(name: str, table: Table, figure: "Figure") -> None:
    """Draw accuracy over rounds and over bytes, in a column per setting; those of the domains side by side."""
    settings = SETTINGS[name]
    axes = figure.subplots(1, 2, sharey=True)[:, None] if len(settings) == 1 else figure.subplots(2, len(settings))
    for column, setting in enumerate(settings):
        for line, over_bytes in enumerate((False, True)):
            _plot(axes[line, column], _runs(table, name, setting), over_bytes)
        if len(settings) > 1:
            axes[0, column].set_title(setting)
    _legend(figure, max(axes[0], key=lambda part: len(part.get_lines())))


def ablation(name: str, table: Table, figure: "Figure") -> None:
    """Draw the ablations over rounds."""
    axes = figure.subplots()
    _plot(axes, {cell.row: runs for cell in STUDIES[name].shown if (runs := table.get(cell))}, over_bytes=False)
    _legend(figure, axes, "outside right center", 1)


def sizes(name: str, table: Table, figure: "Figure") -> None:
    """Draw accuracy over the size of factorised networks, of a single client and on the domains."""
    axes = figure.subplots(1, 2)
    for part, place in zip(axes, ("a single client", "domains"), strict=True):
        for l1, marker, label in ((True, "o", "gradient of L1"), (False, "x", "no gradient")):
            points = []
            for cell in STUDIES[name].shown:
                runs = table.get(cell) if cell.method == "factorized-fl" else []
                if runs and (len(runs[0].domains) > 1) == (place == "domains"):
                    accuracy = mean_accuracy(runs)
                    if accuracy and runs[0].configuration["options"]["l1"] is l1:
                        points.append((mean_millions(runs), accuracy.value))
            if points:
                part.plot(*zip(*sorted(points), strict=True), marker=marker, linewidth=0.8, label=label)
        part.set_title(place)
        part.set_xlabel("millions of parameters")
        part.set_ylabel("accuracy, %")
    _legend(figure, axes[0])


def distances(name: str, table: Table, figure: "Figure") -> None:
    """Draw the distances of updates, the accuracy of averages, and the distances of u and v."""
    record = table.heterogeneity[0]
    others = record["parties"][1:]
    axes = figure.subplots(1, 4)
    totals = np.array(record["dense"]["body"]["total"])
    for index, party in enumerate(others):
        axes[0].plot(np.arange(1, len(totals) + 1), totals[:, index], label=party, linewidth=1)
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


# -- bars and heat maps


def bars(name: str, table: Table, figure: "Figure") -> None:
    """Draw every client's accuracy, by domain."""
    several = _runs(table, "domains", "domains")
    axes = figure.subplots(5, 1, sharex=True)
    first = next(iter(several.values()))[0]
    width = 0.8 / len(several)
    lowest = 100 * min(accuracy for runs in several.values() for run in runs for accuracy in run.accuracies())
    for part, group in zip(axes, np.array_split(np.arange(len(first.domains)), 5), strict=True):
        for index, (row, runs) in enumerate(several.items()):
            values = 100 * np.mean([run.accuracies() for run in runs], axis=0)
            places = np.arange(len(group)) + index * width
            part.bar(places, values[group], width, label=title(row), color=_colour(row))
        part.set_ylabel(first.domains[group[0]])
        part.set_ylim(bottom=lowest - 5)
        for position, client in enumerate(group):
            part.text(position - width / 2, lowest - 4.5, str(client + 1), fontsize=6)
    axes[-1].set_xticks([])
    _legend(figure, axes[0])


def heat_maps(name: str, table: Table, figure: "Figure") -> None:
    """Draw the cosines of u and v after some rounds, how often clients were matched, and their weights."""
    cells = [cell for cell in STUDIES[name].shown if table.get(cell)]
    parts = figure.subfigures(len(cells), 1, squeeze=False)[:, 0]
    for part, cell in zip(parts, cells, strict=True):
        record = table.get(cell)[0].record
        part.suptitle(title(cell.row) if cell.variant else f"{title(cell.row)} (the paper's layout)", fontsize=8)
        axes = part.subplots(2, 6)
        for line, kind in enumerate(("u", "v")):
            matrices = record["factors"][kind]["matrices"]
            for column, (number, matrix) in enumerate(matrices.items()):
                _picture(axes[line, column], _without_diagonal(matrix), f"{kind}, round {number}")
            for unused in axes[line, len(matrices) : 5]:
                unused.axis("off")
        _picture(axes[0, 5], np.array(record["mixing"]["matched"], dtype=float), "rounds matched")
        _picture(axes[1, 5], _without_diagonal(record["mixing"]["weight"]), "mean weight")


def _peer_runs(table: Table) -> dict[str, Run]:
    """Return the first seed's runs of the paper's two methods and of ours."""
    cells = [("domains", row) for row in ("factorized-fl", "factorized-fl-beta")]
    cells += [("beyond", row) for row in (OWN, f"{OWN}+not-settled") if table.of("beyond", "domains", row)][:1]
    return {row: runs[0] for study, row in cells if (runs := table.of(study, "domains", row))}


def peers(name: str, table: Table, figure: "Figure") -> None:
    """Draw the mean weights that clients give to each other."""
    runs = _peer_runs(table)
    for axes, (row, run) in zip(figure.subplots(1, len(runs)), runs.items(), strict=True):
        _picture(axes, np.array(run.record["mixing"]["weight"]), title(row))


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


DRAWINGS: dict[str, Callable[[str, Table, "Figure"], None]] = {
    draw.__name__: draw for draw in (curves, bars, ablation, heat_maps, peers, sizes, distances)
}
