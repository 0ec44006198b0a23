"""The page's charts as SVG and PNG files, drawn by matplotlib (an extra) from the same document."""

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors
from factorized_fl.report.collect import Document, collect
from factorized_fl.results.reading import Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555C66")  # Okabe and Ito
_STYLE: Any = {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "svg.hashsalt": "ffl"}


def write_figures(paths: Sequence[Path], out: Path, baseline: Path | None = None) -> list[Path]:
    """Write every figure for which there is data as SVG and PNG, and return the files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('Figures need matplotlib: pip install "factorized-fl[figures]".') from None
    document = collect(paths, baseline)
    written: list[Path] = []
    with matplotlib.rc_context(_STYLE), plain_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, shape, draw in _figures(document):
            figure = Figure(figsize=shape, layout="constrained")
            axes = figure.subplots()
            draw(axes)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize="small")
            freeze_layout(figure)
            for kind in ("svg", "png"):
                path = out / f"{name}.{kind}"
                part = path.with_name(path.name + ".part")
                figure.savefig(part, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
                part.replace(path)
                written.append(path)
    return written


def freeze_layout(figure: "Figure") -> None:
    """Round all positions: the layout solver's last bits vary, and identifiers in SVG files depend on them."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(5))
    for axes in figure.get_axes():
        axes.set_position(Bbox(axes.get_position(original=True).get_points().round(5)))


def _figures(document: Document) -> Iterator[tuple[str, tuple[float, float], Callable[[Any], None]]]:
    """Yield the name, the size in inches and the drawing function of each figure."""
    if document["comparison"]:
        yield "accuracy-of-methods", (5, 3.2), partial(_methods_curves, document=document)
        yield "accuracy-against-bytes", (5, 3.2), partial(_pareto, document=document)
    for run in document["runs"]:
        name = run["name"]
        if run["curves"]["up"]:
            yield f"{name}-accuracy", (5, 3.2), partial(_accuracy, run=run)
        if run["final"]:
            yield f"{name}-clients", (7, 3.2), partial(_clients, run=run)
        for kind in run["matrices"]:
            yield f"{name}-{kind}", (4, 3.6), partial(_matrix, run=run, kind=kind)
        if run["means"]:
            yield f"{name}-similarity", (5, 3.2), partial(_similarity, run=run)


def accuracies(run: Document) -> Matrix:
    """Return scores by client and round, of shares in percent, carried forward from the last test."""
    curve = run["curves"]["score"]
    raw = np.frombuffer(base64.b64decode(curve["steps"]), dtype="<u2")
    values = _factor(run) * (curve["low"] + curve["unit"] * raw)
    table = np.where(raw == 65_535, np.nan, values).reshape(len(run["clients"]), -1)
    for at in range(1, table.shape[1]):
        table[:, at] = np.where(np.isnan(table[:, at]), table[:, at - 1], table[:, at])
    return table


def _factor(run: Document) -> int:
    return 100 if run["share"] else 1


def _score_label(run: Document) -> str:
    return f"{run['metric']}, %" if run["share"] else str(run["metric"])


def _mean_curve(table: Matrix) -> Matrix:
    known = (~np.isnan(table)).sum(0)
    return np.nansum(table, 0) / np.where(known, known, np.nan)


def _accuracy(axes: Any, run: Document) -> None:
    table = accuracies(run)
    rounds = np.arange(1, table.shape[1] + 1)
    axes.plot(rounds, _mean_curve(table), color="black", linewidth=2, label="all clients")
    for index, domain in enumerate(run["domains"] if len(run["domains"]) > 1 else []):
        members = [k for k, client in enumerate(run["clients"]) if client["domain"] == index]
        axes.plot(rounds, _mean_curve(table[members]), color=COLOURS[index % 7], label=_text(domain))
    if run["verdicts"]:
        alone = _factor(run) * float(np.mean([verdict["reference"] for verdict in run["verdicts"]]))
        axes.axhline(alone, color="grey", linestyle="--", linewidth=1, label="without federation, at the end")
    axes.set(xlabel="round", ylabel=_score_label(run), title=run["title"])


def _clients(axes: Any, run: Document) -> None:
    alone = {verdict["client"]: verdict["reference"] for verdict in run["verdicts"]}
    places = [final["client"] for final in run["final"]]
    if alone:
        axes.bar(
            [k - 0.2 for k in alone],
            [_factor(run) * a for a in alone.values()],
            0.4,
            color=COLOURS[5],
            label="without federation",
        )
    shift = 0.2 if alone else 0.0
    heights = [_factor(run) * final["accuracy"] for final in run["final"]]
    axes.bar([k + shift for k in places], heights, 0.4, color=COLOURS[0], label=run["title"])
    axes.set(xlabel="client", ylabel=_score_label(run), xticks=places, xticklabels=[str(k + 1) for k in places])


def _matrix(axes: Any, run: Document, kind: str) -> None:
    matrix = run["matrices"][kind]
    count = len(run["clients"])
    steps = np.frombuffer(base64.b64decode(matrix["data"][-1]), dtype=np.uint8).reshape(count, count)
    values = np.where(steps == 255, np.nan, matrix["low"] + steps / 254 * (matrix["high"] - matrix["low"]))
    image = axes.imshow(values, cmap="viridis")
    axes.figure.colorbar(image, ax=axes, shrink=0.85)
    axes.set(xlabel="gives", ylabel="receives", title=f"{kind}, round {matrix['rounds'][-1]}")
    axes.spines[:].set_visible(False)


def _similarity(axes: Any, run: Document) -> None:
    several = len(run["domains"]) > 1
    for index, (kind, (rounds, within, across)) in enumerate(run["means"].items()):
        color = COLOURS[index % 7]
        label = f"{kind}, {'same domain' if several else 'all pairs'}"
        axes.plot(rounds, np.array(within, dtype=float), color=color, label=label)
        if several:
            axes.plot(rounds, np.array(across, dtype=float), color=color, linestyle=":", label=f"{kind}, other domains")
    axes.set(xlabel="round", ylabel="mean cosine", title=run["title"])


def _methods_curves(axes: Any, document: Document) -> None:
    for index, variant in enumerate(document["comparison"]["variants"]):
        tables = [accuracies(document["runs"][r]) for r in variant["runs"] if document["runs"][r]["curves"]["up"]]
        if tables:
            rounds = min(table.shape[1] for table in tables)
            curve = np.mean([_mean_curve(table)[:rounds] for table in tables], axis=0)
            style = ("-", "--", ":")[index // 7 % 3]
            axes.plot(range(1, rounds + 1), curve, style, color=COLOURS[index % 7], label=_text(variant["label"]))
    axes.set(xlabel="round", ylabel=_score_label(document["runs"][0]))


def _pareto(axes: Any, document: Document) -> None:
    factor = _factor(document["runs"][0])
    for index, variant in enumerate(document["comparison"]["variants"]):
        if variant["accuracy"] is not None and variant["up"] is not None:
            point = ((variant["up"] + variant["down"]) / 1e6, factor * variant["accuracy"])
            spread = factor * (variant["seed_spread"] or 0)
            axes.errorbar(*point, spread, fmt="o", color=COLOURS[index % 7])
            axes.annotate(_text(variant["label"]), point, (6, 4), textcoords="offset points")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set(xlabel="sent both ways, MB", ylabel=_score_label(document["runs"][0]))


def _text(name: str) -> str:
    """Return a name that matplotlib neither parses as mathematics nor hides for a leading underscore."""
    escaped = name.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped
