"""Descriptions of inputs other than images: the type and the shape of one input, such as "float32 2x20"."""

import re
from dataclasses import dataclass

from factorized_fl.core.errors import UserError

_FORM = re.compile(r"(float32|int64) ([1-9][0-9]{0,8}(?:x[1-9][0-9]{0,8})*)")


@dataclass(frozen=True)
class InputKind:
    """The type of the numbers of an input, float32 or int64, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape))}"


def input_kind(text: str) -> InputKind:
    """Return the kind of inputs that a text names; raise UserError if the text has another form."""
    if not (found := _FORM.fullmatch(text)):
        raise UserError(
            f"inputs = {text!r} must be a type, float32 or int64, and a shape, as in 'float32 2x20' or 'int64 6'."
        )
    return InputKind(found[1], tuple(map(int, found[2].split("x"))))
