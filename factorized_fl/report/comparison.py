"""The page's comparison of several runs: rows of methods, differences per client, a headline, tables to download."""

from collections.abc import Sequence

from factorized_fl.report.exports import Rows, client_rows, downloads
from factorized_fl.report.tables import format_bytes
from factorized_fl.results.comparison import BASELINE, Variant, Verdict, difference_lines, group_runs
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.schema import Record

_MOST_DIFFERENCES = 60_000  # pairs of variants times clients that a page holds


def comparison_document(runs: Sequence[RunFiles]) -> Record:
    """Return the comparison part of the document."""
    variants, notes = group_runs(runs)
    for variant in variants[1:]:
        if lines := difference_lines(variant.first, variants[0].first):
            notes.append(f"{variants[0].label}, unlike {variant.label}, was trained with {', '.join(lines)}.")
    reference = next((i for i, variant in enumerate(variants) if variant.first.method == BASELINE), None)
    pairs = len(variants) * (len(variants) - 1) * max(len(run.clients) for run in runs)
    references = range(len(variants)) if pairs <= _MOST_DIFFERENCES else [] if reference is None else [reference]
    notes += _seed_notes([(variants[at], other) for at in references for other in variants])
    differences = {
        str(base): {
            str(other): [_difference(verdict) for verdict in variants[other].against(variants[base])]
            for other in range(len(variants))
            if other != base
        }
        for base in references
    }
    rows = [_variant_row(variant, None if reference is None else variants[reference]) for variant in variants]
    return {
        "variants": rows,
        "reference": reference,
        "differences": differences,
        "headline": _headline(rows, reference),
        "downloads": downloads("comparison", table_rows(rows), client_rows(runs)),
        "notes": notes,
    }


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


def _difference(verdict: Verdict) -> tuple[int, float, float, str]:
    return verdict.client, round(verdict.difference, 6), round(verdict.error, 6), verdict.word


def _variant_row(variant: Variant, base: Variant | None) -> Record:
    row = variant.row(base)
    compared = len(row.verdicts) if row else 0
    return {
        "label": variant.label,
        "method": variant.first.method,
        "runs": [index for index, _ in variant.runs.values()],
        "seeds": list(variant.runs),
        "complete": variant.complete,
        "accuracy": row.accuracy if row else None,
        "client_spread": row.client_spread if row else None,
        "seed_spread": row.seed_spread if row else None,
        "up": row.up_bytes if row else None,
        "down": row.down_bytes if row else None,
        "seconds": variant.seconds,
        "helped": len(row.clients("helped")) if row and compared else None,
        "harmed": len(row.clients("harmed")) if row and compared else None,
        "better": row.better if row and compared else None,
        "compared": compared,
    }


def _headline(rows: Sequence[Record], reference: int | None) -> str:
    known = [row for row in rows if row["accuracy"] is not None]
    if not known:
        return "No run has a result yet."
    best = max(known, key=lambda row: row["accuracy"])
    seeds = len(best["seeds"])
    equal = [row["label"] for row in known if row["accuracy"] == best["accuracy"]]
    who = f"{', '.join(equal[:-1])} and {equal[-1]} share" if len(equal) > 1 else f"{best['label']} has"
    text = f"{who} the highest mean accuracy, {100 * best['accuracy']:.1f}%"
    text += f" over {seeds} seeds" if seeds > 1 else " (one seed)"
    if not all(row["complete"] for row in rows):
        text = f"Not every run has ended. So far {text}"
    alone = rows[reference]["accuracy"] if reference is not None else None
    if alone is None:
        return f"{text}. Run the control, Stand-Alone, to see whether federation helped."
    if best is rows[reference or 0]:
        return f"{text}: on average no federation beat training alone."
    text += f"; alone it is {100 * alone:.1f}%."
    if len(equal) > 1:
        return text
    return f"{text} It helped {best['helped']} of {best['compared']} clients and harmed {best['harmed']}."


def table_rows(rows: Sequence[Record]) -> Rows:
    """Return the comparison as a table of strings, accuracies in percent."""
    heading = ["method", "seeds", "accuracy", "± clients", "± seeds", "beat Stand-Alone", "helped", "harmed"]
    table = [[*heading, "up", "down", "seconds"]]
    for row in rows:
        percents = [_number(row[name], 100, 2) for name in ("accuracy", "client_spread", "seed_spread")]
        counts = [f"{row['better']} of {row['compared']}" if row["compared"] else "-"]
        counts += [str(row[name]) if row["compared"] else "-" for name in ("helped", "harmed")]
        sent = [format_bytes(row[way]) for way in ("up", "down")]
        table.append([row["label"], str(len(row["seeds"])), *percents, *counts, *sent, _number(row["seconds"], 1, 1)])
    return table


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"
