"""Words about runs that the terminal, the page and the documents share."""

from collections.abc import Iterable

from factorized_fl.methods import METHODS


def divergence_line(clients: Iterable[int]) -> str:
    """Return a sentence that names clients, numbered from 0, whose training diverged."""
    return f"Training diverged for client {', '.join(str(k + 1) for k in clients)}: a smaller lr may help."


def method_title(name: str) -> str:
    """Return a method's full name, with an entry's own settings; the name itself for a method that is not loaded."""
    method, _, own = name.partition(":")
    title = METHODS[method].card.title if method in METHODS else method
    return f"{title} ({own.replace(':', ', ')})" if own else title
