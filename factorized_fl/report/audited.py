"""The page's panel of an audit."""

from factorized_fl.core.errors import UserError
from factorized_fl.results.audited import read_audit
from factorized_fl.results.reading import RunFiles, RunReader
from factorized_fl.results.schema import Record


def audit_panel(run: RunFiles) -> Record | None:
    """Return the findings of `ffl audit`; None if the run was not audited."""
    try:
        return read_audit(RunReader(run.path, strict=False))
    except (UserError, TypeError, ValueError):
        run.notes.append("audit.json cannot be shown.")
        return None
