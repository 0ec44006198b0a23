"""Output for programs (--json) of a run, a comparison and an inspection of images."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from factorized_fl.data.local_images import Inspection
from factorized_fl.results.comparison import Comparison, comparison_json
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import Record
from factorized_fl.results.words import method_title


def run_document(directory: RunDirectory, page: Path | None) -> Record:
    """Return where a complete run is, its configuration and its summary; clients have names and numbers from 1."""
    summary = directory.summary() or {}
    names = [client["name"] for client in directory.clients()]
    return {
        "directory": str(directory.path),
        "report": str(page) if page else None,
        **summary,
        "clients": [
            {**client, "name": names[client["client"]], "client": client["client"] + 1}
            for client in summary.get("clients", [])
        ],
        "configuration": dataclasses.asdict(directory.config()),
    }


def comparison_document_of(rows: Sequence[Comparison], out: Path, page: Path | None) -> Record:
    """Return where a comparison is, and its rows as in comparison.json, with titles and names of clients."""
    records = json.loads(comparison_json(rows))
    for row, record in zip(rows, records, strict=True):
        record["title"] = method_title(row.method)
    return {"directory": str(out), "report": str(page) if page else None, "rows": records}


def inspection_document(found: Inspection) -> Record:
    """Return the findings for a program; images outside of splits are counted under "images"."""
    return {
        "images": found.total,
        "classes": found.classes,
        "counts": {split or "images": dict(counts) for split, counts in found.counts.items()},
        "sizes": [{"width": w, "height": h, "images": count} for (w, h), count in found.sizes.most_common()],
        "grey": found.grey,
        "colour": found.total - found.grey,
        "unreadable": [where for _, where in found.unreadable] + list(found.no_white),
        "warnings": found.complaints(),
    }
