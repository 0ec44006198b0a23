"""The page's comparison of several runs: rows of methods, differences per client, a headline, tables to download."""

from collections.abc import Sequence

from factorized_fl.report.command import comparison_command
from factorized_fl.report.exports import Rows, client_rows, downloads
from factorized_fl.report.tables import comparison_cells, headings_of
from factorized_fl.results.comparison import Variant, difference_banner, differing, group_runs
from factorized_fl.results.control import BASELINE
from factorized_fl.results.effect import CONTROL, Effect
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.schema import Record
from factorized_fl.results.words import score_text

_MOST_DIFFERENCES = 60_000  # pairs of variants times clients that a page holds


def comparison_document(runs: Sequence[RunFiles], controls: Sequence[RunFiles] = ()) -> Record:
    """Return the comparison part of the document."""
    variants, notes = group_runs(runs, controls)
    reference = next((i for i, variant in enumerate(variants) if variant.first.method == BASELINE), None)
    pairs = len(variants) * (len(variants) - 1) * max(len(run.clients) for run in runs)
    references = range(len(variants)) if pairs <= _MOST_DIFFERENCES else [] if reference is None else [reference]
    notes += _seed_notes([(variants[at], other) for at in references for other in variants])
    differences = {
        str(at): {
            str(other): _effect(variants[other].against(variants[at].results, variants[at].label))
            for other in range(len(variants))
            if other != at
        }
        for at in references
    }
    if any(variant.controls for variant in variants):
        differences[CONTROL] = {str(at): _effect(variant.effect) for at, variant in enumerate(variants)}
    base = None if reference is None else variants[reference]
    rows = [_variant_row(variant, base) for variant in variants]
    return {
        "variants": rows,
        "reference": reference,
        "differences": differences,
        "headline": _headline(rows, reference, variants[0].first.metric),
        "banner": difference_banner([variant.label for variant in variants], differing(variants)),
        "command": comparison_command(runs),
        "downloads": downloads("comparison", _table(variants, base), client_rows(runs)),
        "notes": notes,
    }


def _effect(effect: Effect | None) -> Record | None:
    """Return an effect for the page; of each client its number from 0, difference, half the interval and verdict."""
    if effect is None:
        return None
    clients = [(v.client - 1, round(v.difference, 6), round(v.margin, 6), v.word) for v in effect.clients]
    numbers = {name: round(getattr(effect, name), 9) for name in ("mean", "low", "high")}
    return {**numbers, "seeds": effect.seeds, "sentence": effect.sentence, "clients": clients}


def _seed_notes(pairs: Sequence[tuple[Variant, Variant]]) -> list[str]:
    """Return a note for each pair of variants that do not have the same seeds."""
    notes: dict[frozenset[str], str] = {}
    for base, other in pairs:
        ours, theirs = set(other.results), set(base.results)
        if ours != theirs:
            both = ", ".join(map(str, sorted(ours & theirs))) or "none"
            note = f"{other.label} and {base.label} do not have the same seeds: they are compared over {both}."
            notes.setdefault(frozenset((base.label, other.label)), note)
    return list(notes.values())


def _variant_row(variant: Variant, base: Variant | None) -> Record:
    row = variant.row(base)
    effect, alone = (row.effect, row.alone) if row else (None, None)
    return {
        "label": variant.label + (" (did not activate)" if row and row.inactive else ""),
        "method": variant.first.method,
        "runs": [index for index, _ in variant.runs.values()],
        "seeds": list(variant.runs),
        "complete": all(run.complete for _, run in variant.runs.values()),
        **{name: getattr(row, name, None) for name in ("accuracy", "client_spread", "seed_spread")},
        **{way: getattr(row, f"{way}_bytes", None) for way in ("up", "down")},
        "seconds": variant.seconds,
        "effect": _effect(effect),
        "alone": _effect(alone),
        **{word: effect.number(word) if effect and effect.seeds > 1 else None for word in ("helped", "harmed")},
    }


def _headline(rows: Sequence[Record], reference: int | None, metric: str) -> str:
    known = [row for row in rows if row["accuracy"] is not None]
    if not known:
        return "No run has a result yet."
    best = max(known, key=lambda row: row["accuracy"])
    seeds = len(best["seeds"])
    equal = [row["label"] for row in known if row["accuracy"] == best["accuracy"]]
    leaders = f"{', '.join(equal[:-1])} and {equal[-1]} share" if len(equal) > 1 else f"{best['label']} has"
    text = f"{leaders} the highest mean {metric}, {score_text(metric, best['accuracy'], 1)}"
    text += f" over {seeds} seeds" if seeds > 1 else " (one seed)"
    if not all(row["complete"] for row in rows):
        text = f"Not every run has ended. So far {text}"
    alone = rows[reference]["accuracy"] if reference is not None else None
    if alone is not None and best is rows[reference or 0]:
        return f"{text}: on average no federation was better than training alone."
    text += f"; alone it is {score_text(metric, alone, 1)}." if alone is not None else "."
    found = best["effect"] or best["alone"]
    if found and len(equal) == 1:
        return f"{text} That is {found['sentence']}"
    return text if found or alone is not None else f"{text} Run the control to see whether federation helped."


def _table(variants: Sequence[Variant], base: Variant | None) -> Rows:
    """Return the comparison as a table of strings, shares such as accuracies in percent."""
    rows = [["method", "seeds", *headings_of(variants[0].first.metric), "seconds"]]
    for variant in variants:
        seconds = "-" if variant.seconds is None else f"{variant.seconds:.1f}"
        rows.append([variant.label, str(len(variant.runs)), *comparison_cells(variant.row(base)), seconds])
    return rows
