"""Tables and lines for a terminal: images, the clients and the model of a run, its results, comparisons of methods."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from rich.table import Column, Table
from rich.text import Text

from factorized_fl.data.local_images import SPLITS, Inspection
from factorized_fl.data.scenarios import Scenario
from factorized_fl.report.listing import NamedTable
from factorized_fl.results.comparison import Comparison, difference_banner
from factorized_fl.results.effect import Effect
from factorized_fl.results.schema import ACCURACY, Record, inactivity_line, metric_of, score_of
from factorized_fl.results.statistic import Word
from factorized_fl.results.words import divergence_line, is_share, method_title, score_text

_ALONE = "over Stand-Alone"
HEADINGS = ("accuracy", "± seeds", "over its control", "helped", "harmed", _ALONE, "up", "down")
_NAMED: tuple[Word, Word] = ("helped", "harmed")
_right = partial(Column, justify="right")


def format_bytes(count: float | None) -> str:
    """Return a number of bytes in the largest fitting unit; "-" for None."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def scenario_table(scenario: Scenario) -> Table:
    """Return each client's domain, numbers of images and label permutation."""
    agree = "labels agree" if scenario.labels_agree else "labels differ, so classifiers are not shared"
    title = f"{len(scenario.clients)} clients, {agree}"
    counts = map(_right, ("train", "validation", "test"))
    names = (Column("client", no_wrap=True), Column("domain", overflow="fold"))
    table = Table(*names, *counts, "label of class 0, 1, 2, ...", title=title, title_justify="left")
    for client in scenario.clients:
        table.add_row(
            client.name.removeprefix("client "),
            client.domain,
            *(f"{len(part):,}" for part in (client.train, client.validation, client.test)),
            " ".join(str(label) for label in client.labelling.tolist()),
        )
    return table


def model_line(name: str, parameters: Mapping[str, int], shared: int) -> str:
    """Return a line about a model from its numbers of parameters by role and the number of shared parameters."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in parameters.items())
    return f"{name}: {sum(parameters.values()):,} numbers ({kinds}); {shared:,} shared"


def result_table(summary: Record, names: Sequence[str] = ()) -> Table:
    """Return the final score of every client by the primary metric; `names` are the clients' own, in order."""
    tested = [client for client in summary["clients"] if score_of(client) is not None]
    metric = metric_of(tested[0]) if tested else ACCURACY
    result = "no client was tested"
    if tested:
        scores = [score_of(client) or 0.0 for client in tested]
        spread = score_text(metric, statistics.pstdev(scores)).removesuffix("%")
        result = f"{score_text(metric, statistics.fmean(scores))} ± {spread} over {len(scores)} clients"
    sent = f"up {format_bytes(summary['up_bytes'])}, down {format_bytes(summary['down_bytes'])}"
    title = f"{method_title(summary['method'])}: {result}, {sent}"
    counted = all(client["correct"] is not None for client in tested)
    last = "correct / tested" if counted else "tested"
    named = Column("client", overflow="fold", justify="left" if names else "right")
    table = Table(
        named, Column("domain", overflow="fold"), _right(metric), _right(last), title=title, title_justify="left"
    )
    for client in tested:
        total = f"{client['correct']:,} / {client['total']:,}" if counted else f"{client['total']:,}"
        name = names[client["client"]] if names else str(client["client"] + 1)
        table.add_row(
            name.removeprefix("client "), client["domain"], score_text(metric, score_of(client) or 0.0), total
        )
    return table


def comparison_cells(row: Comparison | None) -> list[str]:
    """Return a comparison's row as text in the columns of HEADINGS, with shares such as accuracies in percent."""
    if row is None:
        return ["-"] * len(HEADINGS)
    given = (row.accuracy, row.seed_spread)
    shares = ("-" if share is None else score_text(row.metric, share).removesuffix("%") for share in given)
    effect = row.effect
    counts = (str(effect.number(word)) if effect and effect.seeds > 1 else "-" for word in _NAMED)
    sent = (format_bytes(count) for count in (row.up_bytes, row.down_bytes))
    return [*shares, _gain(effect), *counts, _gain(row.alone), *sent]


def _gain(effect: Effect | None) -> str:
    """Return a mean difference with half of its 95% interval, of shares in points."""
    if not effect:
        return "-"
    margin = (effect.high - effect.low) / 2
    return (
        f"{100 * effect.mean:+.1f} ± {100 * margin:.1f}"
        if is_share(effect.metric)
        else f"{effect.mean:+.3g} ± {margin:.2g}"
    )


def headings_of(metric: str) -> tuple[str, ...]:
    """Return the headings of a comparison by its primary metric."""
    return (metric, *HEADINGS[1:])


def comparison_table(rows: Sequence[Comparison], title: str) -> NamedTable:
    """Return the comparison as a table for a terminal; without Stand-Alone there is no column of it."""
    metric = rows[0].metric
    every = headings_of(metric)
    headings = [name for name in every if name != _ALONE or any(row.alone for row in rows)]
    table = NamedTable(("method", *headings), title)
    best = max(row.accuracy for row in rows)
    for row in rows:
        cells = dict(zip(every, comparison_cells(row), strict=True))
        score = Text(score_text(metric, row.accuracy), style="bold" if row.accuracy == best else "")
        table.add_row(method_title(row.method), score, *(cells[name] for name in headings[1:]))
    return table


def verdict_lines(rows: Sequence[Comparison]) -> list[str]:
    """Return sentences on differing settings, each method's verdict, and clients whose training diverged."""
    banner = difference_banner([method_title(row.method) for row in rows], [row.differs for row in rows])
    lines = [banner] if banner else []
    for row in rows:
        if effect := row.effect or row.alone:
            lines.append(f"{method_title(row.method)}: {effect.sentence}")
        if row.inactive:
            lines.append(
                inactivity_line(method_title(row.method), f" in {row.inactive} runs" if row.inactive > 1 else "")
            )
        if row.diverged:
            lines.append(f"{method_title(row.method)}: {divergence_line(row.diverged)}")
    return lines


def inspection_line(found: Inspection) -> str:
    """Return the numbers, sizes and colours of the images in one line."""
    sizes = [f"{width}x{height}" for (width, height), _ in found.sizes.most_common(3)]
    others = f" and {len(found.sizes) - 3} other sizes" if len(found.sizes) > 3 else ""
    unreadable = len(found.unreadable) + len(found.no_white)
    return (
        f"{found.total:,} images in {len(found.classes)} classes, {', '.join(sizes)}{others}; "
        f"{found.grey:,} grey, {found.total - found.grey:,} colour; {unreadable} unreadable"
    )


def inspection_table(found: Inspection) -> Table:
    """Return the numbers of images by class and split."""
    splits = [split for split in ("", *SPLITS) if split in found.counts]
    table = Table(Column("class", overflow="fold"), *(_right(split or "images") for split in splits))
    for name in found.classes:
        table.add_row(name, *(f"{found.counts[split][name]:,}" for split in splits))
    return table
