"""Words about runs that the terminal, the page and the documents share."""

from collections.abc import Iterable

from factorized_fl.methods import METHODS
from factorized_fl.results.schema import ACCURACY

_SHARES = (ACCURACY, "balanced-accuracy", "macro-f1", "auroc")  # metrics from 0 to 1, which are shown in percent


def is_share(metric: str) -> bool:
    """Return whether a metric is shown in percent, and differences in it in points."""
    return metric in _SHARES


def score_text(metric: str, score: float, digits: int = 2) -> str:
    """Return a score: in percent with so many digits, or as a number for metrics that are no shares."""
    return f"{100 * score:.{digits}f}%" if is_share(metric) else f"{score:.4g}"


def gap_text(metric: str, mean: float, low: float, high: float) -> str:
    """Return a difference of scores with its 95% interval."""
    if is_share(metric):
        return f"{100 * mean:+.1f} points (95% interval {100 * low:+.1f} to {100 * high:+.1f})"
    return f"{mean:+.3g} in {metric} (95% interval {low:+.3g} to {high:+.3g})"


def divergence_line(clients: Iterable[int]) -> str:
    """Return a sentence that names clients, numbered from 0, whose training diverged."""
    return f"Training diverged for client {', '.join(str(k + 1) for k in clients)}: a smaller lr may help."


def method_title(name: str) -> str:
    """Return a method's full name, with an entry's own settings; the name itself for a method that is not loaded."""
    method, _, own = name.partition(":")
    title = METHODS[method].card.title if method in METHODS else method
    return f"{title} ({own.replace(':', ', ')})" if own else title
