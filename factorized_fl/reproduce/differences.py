"""Where we are far from the paper's numbers, and what brings us near."""

from collections.abc import Sequence
from dataclasses import replace

from factorized_fl.reproduce import prose
from factorized_fl.reproduce.collection import Collection, best_rounds
from factorized_fl.reproduce.markdown import entry, plain, table
from factorized_fl.reproduce.names import title, variant_title
from factorized_fl.reproduce.prose import CLOSE
from factorized_fl.reproduce.published import AVERAGE
from factorized_fl.reproduce.rows import ALL_EPOCHS, Row, rows_of


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


def differences(found: Collection) -> list[str]:
    """Rows far from the paper's, each with the departures that bring it near; all departures that were run."""
    rows = compared(found)
    far = [row for row in rows if row.difference is not None and abs(row.difference) > CLOSE]
    departures = rows_of("departures", found)
    switchable = {(row.method.partition("+")[0], row.setting) for row in departures}
    lines = []
    for row in far:
        tried = [
            other
            for other in departures
            if (other.method.partition("+")[0], other.setting) == (row.method, row.setting)
            and other.difference is not None
        ]
        near = [
            f"{variant_title(other.method)} ({other.ours:.2f})"
            for other in tried
            if abs(other.difference or 0) <= CLOSE
        ]
        if row.what == "label-svhn":
            outcome = "looked into with CIFAR-10 only"
        elif (row.method, row.setting) not in switchable:
            outcome = "nothing to switch on"
        else:
            outcome = ", ".join(near) or _nearest(tried)
        lines.append([row.what, row.setting, plain(title(row.method)), entry(row), outcome])
    parts = [prose.DIFFERENCES]
    headings = ("study", "setting", "method", "paper / ours", f"comes within {CLOSE} points with")
    parts.append(table(headings, lines) if lines else "No cell that was run differs by so much.")
    run = [row for row in departures if row.ours is not None]
    if run:
        parts.append("All departures that were run:")
        entries = [[row.setting, plain(title(row.method)), entry(row), ", ".join(map(str, row.seeds))] for row in run]
        parts.append(table(("setting", "method", "accuracy, %", "seeds"), entries))
    return [*parts, *_chance(rows), *_last_or_best(rows, found)]


def _chance(rows: Sequence[Row]) -> list[str]:
    """How far two columns that measure the same lie apart in the paper, and in ours."""
    alone = {(row.what, row.setting): row for row in rows if row.method == "stand-alone"}
    lines = []
    for (what, setting), row in alone.items():
        permuted = alone.get((what, setting.replace("standard", "permuted")))
        if setting.startswith("standard") and permuted:
            pairs = ((row.paper, permuted.paper), (row.ours, permuted.ours))
            apart = ["not run" if a is None or b is None else f"{abs(a - b):.2f}" for a, b in pairs]
            lines.append([f"{what}, {setting.removeprefix('standard-')}", *apart])
    return [prose.CHANCE, table(("setting", "paper, points apart", "ours"), lines)] if lines else []


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


def _nearest(tried: Sequence[Row]) -> str:
    """What came closest, if nothing came close."""
    if not tried:
        return "not run"
    best = min(tried, key=lambda row: abs(row.difference or 0))
    return f"none of {len(tried)} tried; nearest: {variant_title(best.method)} ({best.ours:.2f})"
