"""The paper's figures from our results. Needs matplotlib: pip install "factorized-fl[figures]"."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.report.figures import freeze_layout
from studies.paper.cells import read_data, title
from studies.paper.grid import STUDIES
from studies.paper.table import Run, Table, bytes_by_round, mean_curve, mean_of

Figure = Any  # matplotlib's is imported only to draw
Runs = Mapping[str, Sequence[Run]]  # by row


def ready_figures(table: Table) -> dict[str, dict[str, Any]]:
    """Return the figures that the results allow, by name, as figures.toml describes them."""

    def is_ready(figure: Mapping[str, Any]) -> bool:
        if "needs" in figure:
            return all(map(table.runs, figure["needs"]))
        study = STUDIES[figure["study"]]
        return any(map(table.runs, study.shown if figure.get("borrowed") else study.own))

    return {figure["name"]: figure for figure in read_data("figures.toml")["figures"] if is_ready(figure)}


def draw_all(table: Table, folder: Path) -> list[Path]:
    """Draw every figure that the results allow and return their paths; the same results give the same files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('Figures need matplotlib: pip install "factorized-fl[figures]".') from None
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in ready_figures(table).items():
        with matplotlib.rc_context(read_data("figures.toml")["style"]):
            figure = Figure(figsize=wanted["size"], layout="constrained")
            DRAWINGS[wanted["draw"]](table, figure, wanted)
            freeze_layout(figure)
            content = io.BytesIO()
            figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
        paths.append(folder / f"{name}.svg")
        write_atomically(paths[-1], content.getvalue())
    return paths


def _legend(figure: Figure, axes: Any, wanted: Mapping[str, Any]) -> None:
    place, columns = wanted.get("legend", ("outside lower center", 5))
    figure.legend(*axes.get_legend_handles_labels(), loc=place, ncols=columns, frameon=False)


def _runs(table: Table, study: str, setting: str | None = None) -> Runs:
    cells = [cell for cell in STUDIES[study].shown if setting in (None, cell.setting)]
    return {cell.row: runs for cell in cells if (runs := table.runs(cell))}


def _style(row: str) -> dict[str, Any]:
    return {"label": title(row), "color": read_data("figures.toml")["colours"].get(row)}


def _plot(axes: Any, several: Runs, over_bytes: bool) -> None:
    if not several:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, horizontalalignment="center")
        return
    for row, runs in several.items():
        accuracy = mean_curve(runs)
        x = bytes_by_round(runs) / 1e9 if over_bytes else np.arange(1, len(accuracy) + 1)
        if not over_bytes or x[-1]:  # a method without communication has no curve over bytes
            axes.plot(x, accuracy, linewidth=1, **_style(row))
    axes.set(xlabel="gigabytes sent" if over_bytes else "round", ylabel="accuracy, %")
    if over_bytes:
        axes.set_xscale("log")


def curves(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw accuracy over rounds and over bytes, in a column per setting; those of a single setting side by side."""
    settings = wanted["settings"]
    axes = figure.subplots(2, len(settings)) if len(settings) > 1 else figure.subplots(1, 2, sharey=True)[:, None]
    for column, setting in enumerate(settings):
        for line, over_bytes in enumerate((False, True)):
            _plot(axes[line, column], _runs(table, wanted["study"], setting), over_bytes)
        if len(settings) > 1:
            axes[0, column].set_title(setting)
    _legend(figure, max(axes[0], key=lambda part: len(part.get_lines())), wanted)


def rounds(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw the accuracy of all cells of a study over rounds."""
    axes = figure.subplots()
    _plot(axes, _runs(table, wanted["study"]), over_bytes=False)
    _legend(figure, axes, wanted)


def sizes(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw accuracy over the size of factorised networks, of a single client and on the domains."""
    axes = figure.subplots(1, 2)
    cells = [cell for cell in STUDIES[wanted["study"]].shown if cell.method == "factorized-fl" and table.runs(cell)]
    for part, place in zip(axes, ("a single client", "domains"), strict=True):
        for l1, marker, label in ((True, "o", "gradient of L1"), (False, "x", "no gradient")):
            runs = [table.runs(cell) for cell in cells if (cell.setting == "domains") == (place == "domains")]
            shown = [some for some in runs if some[0].record["configuration"]["options"]["l1"] is l1]
            points = sorted((mean_of(some, "millions") or (0.0,), mean_of(some) or (0.0,)) for some in shown)
            if points:
                values = [(size[0], accuracy[0]) for size, accuracy in points]
                part.plot(*zip(*values, strict=True), marker=marker, linewidth=0.8, label=label)
        part.set(title=place, xlabel="millions of parameters", ylabel="accuracy, %")
    _legend(figure, axes[0], wanted)


def distances(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw the distances of updates, the accuracy of averages, and the distances of u and v."""
    record = table.heterogeneity[0].record
    axes, others = figure.subplots(1, 4), record["parties"][1:]
    totals = np.array(record["dense"]["body"]["total"])
    for index, party in enumerate(others):
        axes[0].plot(np.arange(1, len(totals) + 1), totals[:, index], label=party, linewidth=1)
        averaged = np.array(record["averaged"][party]["all"])[:, 1]
        epochs = record["average_every"] * np.arange(1, len(averaged) + 1)
        axes[1].plot(epochs, 100 * averaged / record["tests"], label=party, linewidth=1)
    axes[0].set(title="updates", xlabel="epoch", ylabel="distance")
    axes[1].set(title="averages, on partition 1", xlabel="epoch", ylabel="accuracy, %")
    for part, party in zip(axes[2:], others[1:], strict=True):
        for kind, style in (("u", "-"), ("v", "--")):
            together = np.array(record["factorised_together"][party][kind]["epoch"])[:, 0]
            part.plot(np.arange(1, len(together) + 1), together, style, color="black", label=kind, linewidth=1)
        part.set(title=f"u and v: {party}", xlabel="epoch", ylabel="distance")
        part.legend(frameon=False)
    _legend(figure, axes[0], wanted)


def bars(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw every client's accuracy, by domain."""
    several, axes = _runs(table, wanted["study"], "domains"), figure.subplots(5, 1, sharex=True)
    domains, width = next(iter(several.values()))[0].domains, 0.8 / len(several)
    lowest = 100 * min(accuracy for runs in several.values() for run in runs for accuracy in run.accuracies())
    for part, group in zip(axes, np.array_split(np.arange(len(domains)), 5), strict=True):
        for index, (row, runs) in enumerate(several.items()):
            values = 100 * np.mean([run.accuracies() for run in runs], axis=0)
            places = np.arange(len(group)) + index * width
            part.bar(places, values[group], width, **_style(row))
        part.set_ylabel(domains[group[0]])
        part.set_ylim(bottom=lowest - 5)
        for position, client in enumerate(group):
            part.text(position - width / 2, lowest - 4.5, str(client + 1), fontsize=6)
    axes[-1].set_xticks([])
    _legend(figure, axes[0], wanted)


def heat_maps(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw the cosines of u and v after some rounds, how often clients were matched, and their weights."""
    cells = [cell for cell in STUDIES[wanted["study"]].shown if table.runs(cell)]
    for part, cell in zip(figure.subfigures(len(cells), 1, squeeze=False)[:, 0], cells, strict=True):
        record = table.runs(cell)[0].record
        part.suptitle(title(cell.row) if cell.variant else f"{title(cell.row)} (the paper's layout)", fontsize=8)
        axes = part.subplots(2, 6)
        for line, kind in enumerate(("u", "v")):
            matrices = record["factors"][kind]["matrices"]
            for column, (number, matrix) in enumerate(matrices.items()):
                _picture(axes[line, column], matrix, f"{kind}, round {number}", diagonal=False)
            for unused in axes[line, len(matrices) : 5]:
                unused.axis("off")
        _picture(axes[0, 5], record["mixing"]["matched"], "rounds matched")
        _picture(axes[1, 5], record["mixing"]["weight"], "mean weight", diagonal=False)


def peers(table: Table, figure: Figure, wanted: Mapping[str, Any]) -> None:
    """Draw the mean weights that clients give to each other, first seed."""
    names = [name for name in wanted["cells"] if table.runs(name)]
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        _picture(axes, table.runs(name)[0].record["mixing"]["weight"], title(name.split("/")[2]))


def _picture(axes: Any, matrix: Sequence[Sequence[float]], name: str, diagonal: bool = True) -> None:
    shown = np.array(matrix, dtype=float)
    if not diagonal:
        np.fill_diagonal(shown, np.nan)
    axes.imshow(shown, cmap="Blues", interpolation="nearest")
    axes.set_title(f"{name}\n{np.nanmin(shown):.4g} to {np.nanmax(shown):.4g}", fontsize=6)
    axes.set_xticks([])
    axes.set_yticks([])


DRAWINGS: dict[str, Callable[[Table, Figure, Mapping[str, Any]], None]] = {
    draw.__name__: draw for draw in (curves, rounds, bars, heat_maps, peers, sizes, distances)
}
