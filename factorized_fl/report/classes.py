"""The page's panel of matched classes."""

from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.report.exports import as_csv, class_rows
from factorized_fl.results.classes import judge_rows, matched_classes, run_and_sites
from factorized_fl.results.reading import RunFiles
from factorized_fl.results.references import is_control


def class_panel(run: RunFiles) -> dict[str, Any] | None:
    """Return every class beside those that it was matched with, and their table as a file; None without matching."""
    if run.config.get("align", "off") == "off" or is_control(run):
        return None
    try:
        path, sites = run_and_sites(run.path)
        found = matched_classes(path, sites)
    except (UserError, LookupError, TypeError, ValueError) as error:
        run.notes.append(f"classes.json cannot be shown ({type(error).__name__}).")
        return None
    own = {(row.client, row.number): row for row in reversed(found)}
    peers: dict[tuple[str, int], list[str]] = {key: [] for key in own}
    for row in found:
        peers[row.client, row.number] += [f"{row.peer}: {row.peer_number}"] if row.peer else []
    right, judged = judge_rows(found)
    return {
        "rows": [
            {
                "client": row.client,
                "number": row.number,
                "name": row.name,
                "matched": ", ".join(peers[key]),
                "confidence": row.confidence if row.peer else None,
                "taken": row.taken if row.peer else None,
            }
            for key, row in reversed(own.items())
        ],
        "right": [right, judged] if judged else None,
        "files": {f"{run.method}-seed{run.seed}-classes.csv": as_csv(class_rows(found))},
    }
