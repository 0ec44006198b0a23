"""Names moved to schema.py and reading.py, for callers that have not been changed yet."""

from factorized_fl.results.reading import divergence_line
from factorized_fl.results.schema import diverged

__all__ = ["diverged", "divergence_line"]
