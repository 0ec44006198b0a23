"""Windows of grey values: which values of pictures with more than 8 bits become black and which white."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorized_fl.core.errors import UserError


@dataclass(frozen=True)
class Window:
    """Values up to level - width / 2 are black, values from level + width / 2 on are white."""

    level: float
    width: float

    def grey(self, values: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Return the values as 8 bits."""
        share = (values.astype(np.float64) - (self.level - self.width / 2)) / self.width
        return np.round(255 * share.clip(0, 1)).astype(np.uint8)


def parse_window(words: str) -> Window | None:
    """Return the window of words such as "40/400", None for an empty text; raise UserError for anything else."""
    if not words:
        return None
    level, _, width = words.partition("/")
    try:
        window = Window(float(level), float(width))
    except ValueError:
        window = Window(0.0, 0.0)
    if not (window.width > 0 and abs(window.level) + window.width < float("inf")):
        raise UserError(f"The window '{words}' must be LEVEL/WIDTH with a width above 0, as in 40/400.")
    return window


# A context variable, so that it need not be passed through every function that loads data.
_current: ContextVar[Window | None] = ContextVar("window", default=None)


@contextmanager
def windowing(words: str) -> Iterator[None]:
    """Within the context, decode pictures with more than 8 bits by this window; an empty text sets none."""
    token = _current.set(parse_window(words))
    try:
        yield
    finally:
        _current.reset(token)


def current_window() -> Window | None:
    """Return the window that is set, or None."""
    return _current.get()
