"""The audit of a run: audit.json, cleaned for the page and the model card."""

import math

from factorized_fl.core.errors import UserError
from factorized_fl.results.reading import RESTORE, RunReader
from factorized_fl.results.schema import AUDIT, Record, as_record

_WORDS, _NUMBERS = ("view", "attack", "measure"), ("value", "low", "high", "chance")


def read_audit(reader: RunReader) -> Record | None:
    """The findings and the number of shadow runs; None without an audit. Raises UserError for a damaged file."""
    if not (reader.path / AUDIT).is_file():
        return None
    found = as_record(reader.read_json(AUDIT, RESTORE, fits=lambda found: isinstance(found, dict)))
    findings = [_clean(as_record(each)) for each in found.get("findings", []) if isinstance(each, dict)]
    if not findings or None in findings:
        raise UserError(f"'{reader.path / AUDIT}' is damaged: run `ffl audit` again.")
    shadows = found.get("shadows")
    return {"findings": findings, "shadows": shadows if isinstance(shadows, int) else 0}


def _clean(finding: Record) -> Record | None:
    """One finding with its words and numbers; None if one is missing or is of another type."""
    numbers = [finding.get(name) for name in _NUMBERS]
    words = [finding.get(name) for name in _WORDS]
    if not all(isinstance(word, str) for word in words):
        return None
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return None
    return {**dict(zip(_WORDS, words, strict=True)), **dict(zip(_NUMBERS, numbers, strict=True))}


def audit_sentences(audit: Record) -> list[str]:
    """A sentence for each attack that works better than chance, and one that counts all; for a model card."""
    working = [found for found in audit["findings"] if found["low"] > found["chance"]]
    lines = [f"{len(working)} of {len(audit['findings'])} measured attacks work better than chance."]
    return lines + [
        f"Seen by {found['view']}: {found['attack']}, {found['measure']} {found['value']:.2f} "
        f"({found['low']:.2f} to {found['high']:.2f}), by chance {found['chance']:.2f}."
        for found in working
    ]
