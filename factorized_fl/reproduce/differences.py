"""Where we are far from the paper's numbers, and what brings us near."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from factorized_fl.reproduce import prose
from factorized_fl.reproduce.cells import Cell
from factorized_fl.reproduce.collection import Collection, Key, best_rounds
from factorized_fl.reproduce.departures import DRAW_SEEDS, departure_setting, origin, other_draw, undrawn
from factorized_fl.reproduce.markdown import entry, folded, plain, table
from factorized_fl.reproduce.names import title, variant_title
from factorized_fl.reproduce.predictions import Beside, Predictions, beside_published
from factorized_fl.reproduce.prose import CLOSE
from factorized_fl.reproduce.published import AVERAGE
from factorized_fl.reproduce.rows import ALL_EPOCHS, Row, rows_of
from factorized_fl.reproduce.studies import STUDIES


def compared(found: Collection) -> list[Row]:
    """The rows with a number of the paper beside which ours is held: no single domains, no half-trained clients."""
    rows = [*rows_of("label-cifar10", found), *rows_of("label-svhn", found)]
    rows += [replace(row, setting="domains") for row in rows_of("domains", found) if row.setting == AVERAGE]
    rows += [
        replace(row, setting=row.setting.removesuffix(f", {ALL_EPOCHS}"))
        for row in rows_of("architectures", found)
        if row.setting.endswith(ALL_EPOCHS)
    ]
    return rows


@dataclass(frozen=True)
class Far:
    """A mean far from the paper's, and its runs with something else switched on."""

    row: Row
    tried: tuple[Row, ...]
    drawn: tuple[Row, ...]  # with other draws of the shares, which explain nothing by themselves
    switchable: bool

    @property
    def near(self) -> list[Row]:
        """Those that agree with the paper."""
        return [other for other in self.tried if abs(other.difference or 0) <= CLOSE]

    @property
    def nearest(self) -> Row:
        """What came closest to the paper, if only the row itself."""
        return min((*self.tried, self.row), key=lambda row: abs(row.difference or 0))

    @property
    def outcome(self) -> str:
        """What brings it near, in words."""
        if not self.switchable:
            return "nothing to switch on"
        if not self.tried:
            return f"(another draw, apart: {', '.join(map(_named, self.drawn))})" if self.drawn else "not run"
        if self.near:
            return ", ".join(map(_named, self.near))
        if self.nearest is self.row:
            return f"none of {len(self.tried)} tried comes nearer"
        return f"none of {len(self.tried)} tried; nearest: {_named(self.nearest)}"


def far_from_paper(found: Collection) -> list[Far]:
    """The means that differ by more than we call reproduced."""
    about: dict[Key, list[tuple[Cell, Row]]] = {}
    for cell, other in zip(STUDIES["departures"].shown, rows_of("departures", found), strict=True):
        about.setdefault((*origin(cell), cell.method), []).append((cell, other))
    far = []
    for row in compared(found):
        if row.difference is not None and abs(row.difference) > CLOSE:
            others = about.get((row.what, row.setting, row.method), [])
            run = [(cell, other) for cell, other in others if other.difference is not None]
            tried = tuple(other for cell, other in run if not other_draw(cell))
            drawn = tuple(other for cell, other in run if other_draw(cell))
            far.append(Far(row, tried, drawn, switchable=bool(others)))
    return far


def unexplained_first(cells: Sequence[Cell], found: Collection) -> list[Cell]:
    """The cells with those departures last that nobody waits for: their number is near, was brought near, or unknown.

    Before them come other draws, which explain nothing by themselves.
    """
    far = {(one.row.what, one.row.setting, one.row.method) for one in far_from_paper(found) if not one.near}

    def later(cell: Cell) -> tuple[bool, bool]:
        return cell.what == "departures" and (*origin(cell), cell.method) not in far, other_draw(cell)

    return sorted(cells, key=later)


def differences(found: Collection) -> list[str]:
    """Rows far from the paper's, each with the departures that bring it near; all departures that were run."""
    rows, far = compared(found), far_from_paper(found)
    lines = [[one.row.what, one.row.setting, plain(title(one.row.method)), entry(one.row), one.outcome] for one in far]
    departures = rows_of("departures", found)
    run = [row for row in departures if row.ours is not None]
    parts = [prose.DIFFERENCES.format(close=CLOSE, run=len(run), all=len(departures))]
    headings = ("study", "setting", "method", "paper / ours", f"comes within {CLOSE} points with")
    if lines:
        parts += [*_by_method(rows, far), prose.ONE_BY_ONE, table(headings, lines)]
    else:
        parts.append("No cell that was run differs by so much.")
    if run:
        entries = [[row.setting, plain(title(row.method)), entry(row), ", ".join(map(str, row.seeds))] for row in run]
        every = table(("setting", "method", "accuracy, %", "seeds"), entries)
        parts.append(folded(f"All {len(run)} departures that were run", every))
    return [*parts, *_draws(found), *_predictions(found), *_chance(rows), *_last_or_best(rows, found)]


def _draws(found: Collection) -> list[str]:
    """The same runs with other draws of unequal shares, where any was run."""
    drawn: dict[tuple[str, str], dict[int, Row]] = {}
    rows = {(row.setting, row.method): row for row in rows_of("departures", found)}
    for cell in STUDIES["departures"].own:
        if other_draw(cell):
            row = rows[cell.setting, cell.row]
            drawn.setdefault((cell.setting, undrawn(cell.row)), {})[cell.settings["partition_seed"]] = row
    first = {(departure_setting(row.what, row.setting), row.method): row for row in compared(found)} | rows
    lines = [
        [
            setting,
            title(name),
            f"{first[setting, name].paper:.2f}",
            *(entry(replace(row, paper=None)) for row in (first[setting, name], *some.values())),
        ]
        for (setting, name), some in drawn.items()
        if any(row.ours is not None for row in some.values())
    ]
    headings = ("setting", "method", "paper", "seed 1, as in the tables", *(f"seed {seed}" for seed in DRAW_SEEDS))
    return [prose.DRAWS, table(headings, lines)] if lines else []


def _predictions(found: Collection) -> list[str]:
    """What other draws would bring by their shares alone, and how far such predictions were off."""
    predictions = Predictions(found)
    if not predictions.left_out:
        return []
    left_out = [
        [one.place[1], title(one.place[2]), str(one.draw), f"{one.seen:.2f}", f"{one.predicted:.2f}"]
        for one in predictions.left_out
    ]
    besides = beside_published(predictions)
    alone = {one.place[:2]: one for one in besides if one.predicted and one.place[2] == "stand-alone"}
    lines = []
    for one, row in zip(besides, rows_of("draws", found), strict=True):
        if one.predicted:
            other = alone.get(one.place[:2], one)
            gap = "-" if other is one else _over_alone(one, other)
            poorer = f"{one.predicted.poorer:.0%}"
            lines.append([one.where, title(row.method), entry(row), poorer, f"{one.off:+.1f}", gap])
    headings = ("setting", "method", "paper / over draws", "poorer", "off", "over Stand-Alone, paper / ours")
    return [
        prose.LEFT_OUT,
        table(("setting", "method", "seed of the shares", "seen", "predicted from other seeds"), left_out),
        f"The root of the mean square of these errors is {predictions.error:.2f} points; that of what the draws differ "
        f"by is {predictions.unpredicted:.2f}.",
        prose.PREDICTED.format(draws=max(map(len, predictions.means.values()))),
        *([_alone(list(alone.values()))] if alone else []),
        folded("One by one", table(headings, lines)),
    ]


def _alone(besides: Sequence[Beside]) -> str:
    """How far Stand-Alone is off, of which a draw is all that its settings differ by."""
    told = [f"{one.off:+.1f} ({one.where})" for one in besides]
    return f"Stand-Alone is off by {', '.join(told)} standard deviations."


def _over_alone(one: Beside, alone: Beside) -> str:
    """The difference from Stand-Alone of the paper's number and of what draws would bring."""
    ours = one.predicted.mean - alone.predicted.mean if one.predicted and alone.predicted else float("nan")
    return f"{one.paper - alone.paper:+.2f} / {ours:+.2f}"


def _by_method(rows: Sequence[Row], far: Sequence[Far]) -> list[str]:
    """How many means of a method are far, how many of them something explains, and how much of the distance."""
    lines = []
    for family in dict.fromkeys(map(_family, rows)):
        run = [row for row in rows if _family(row) == family and row.difference is not None]
        some = [one for one in far if _family(one.row) == family]
        if not some:
            continue
        looked_into = [one for one in some if one.tried]
        pairs = [(abs(one.row.difference or 0), abs(one.nearest.difference or 0)) for one in looked_into]
        distances = [f"{statistics.fmean(column):.2f}" for column in zip(*pairs, strict=True)] or ["-", "-"]
        counts = (len(run), len(some), len(looked_into), sum(bool(one.near) for one in some))
        lines.append([plain(family), *map(str, counts), *distances])
    headings = (
        "method",
        "means",
        "far",
        "looked into",
        "brought near",
        "mean distance of these",
        "of their nearest runs",
    )
    return [table(headings, lines)]


def _family(row: Row) -> str:
    return f"{title(row.method)}, single client" if row.what == "architectures" else title(row.method)


def _named(row: Row) -> str:
    return f"{variant_title(row.method)} ({row.ours:.2f})"


def _chance(rows: Sequence[Row]) -> list[str]:
    """How far two columns that measure the same lie apart in the paper, and in ours; how far seeds do."""
    alone = {(row.what, row.setting): row for row in rows if row.method == "stand-alone"}
    lines = []
    for (what, setting), row in alone.items():
        permuted = alone.get((what, setting.replace("standard", "permuted")))
        if setting.startswith("standard") and permuted:
            pairs = ((row.paper, permuted.paper), (row.ours, permuted.ours))
            apart = ["not run" if a is None or b is None else f"{abs(a - b):.2f}" for a, b in pairs]
            lines.append([f"{what}, {setting.removeprefix('standard-')}", *apart])
    parts = [prose.CHANCE, table(("setting", "paper, points apart", "ours"), lines)] if lines else []
    return [*parts, *_between_trials(rows)]


def _between_trials(rows: Sequence[Row]) -> list[str]:
    """The spread between the paper's trials and between our seeds."""
    theirs = [row.paper_spread for row in rows if row.paper_spread is not None]
    ours = [row.spread for row in rows if row.spread is not None]
    if not ours:
        return []
    return [
        f"Between trials the paper's means have standard deviations of {min(theirs):.2f} to {max(theirs):.2f} points, "
        f"in the median {statistics.median(theirs):.2f}; between seeds ours, where there are two, of {min(ours):.2f} "
        f"to {max(ours):.2f}, in the median {statistics.median(ours):.2f}."
    ]


def _last_or_best(rows: Sequence[Row], found: Collection) -> list[str]:
    """How many means are near the paper's, read from the last round and from every client's best, place by place."""
    near: dict[str, list[tuple[bool, bool]]] = {}
    for row in rows:
        best = best_rounds(found.of(row.what, row.setting, row.method))
        if row.difference is not None and row.paper is not None and best is not None:
            place = "single clients" if row.what == "architectures" else f"{row.what}, {row.setting}"
            pair = (abs(row.difference) <= CLOSE, abs(best - row.paper) <= CLOSE)
            near.setdefault(place.removesuffix(", domains"), []).append(pair)
    lines = [
        [place, str(len(pairs)), *(str(sum(column)) for column in zip(*pairs, strict=True))]
        for place, pairs in near.items()
    ]
    headings = ("setting", "means", "within, last round", "within, best rounds")
    return [prose.BEST_ROUNDS, table(headings, lines)] if lines else []
