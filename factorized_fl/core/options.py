"""Options: fields of frozen dataclasses that carry a description and limits, and are checked against both.

This is our own code on purpose: msgspec and pydantic take limits from `Annotated` types, which would have to be built
from the fields, and msgspec reports errors only as text. Either would replace no more than `_convert`.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from factorized_fl.core.errors import UserError, unknown
from factorized_fl.core.toml_text import to_toml_value

T = TypeVar("T")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class Limits:
    """The description of an option and the values that it accepts."""

    description: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: Sequence[str] = ()

    def complaint(self, value: Any) -> str | None:
        """Return what is wrong with a value of the right type, or None if the value is accepted."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if isinstance(number, str | bool):
                continue
            if number != number or abs(number) == float("inf"):
                return "must be a finite number"
            if self.low is not None and number < self.low:
                return f"must be at least {self.low:g}"
            if self.above is not None and number <= self.above:
                return f"must be above {self.above:g}"
            if self.high is not None and number > self.high:
                return f"must be at most {self.high:g}"
        return None


def option(default: Any, description: str, **limits: Any) -> Any:
    """Declare an option of a method: a dataclass field with a description and limits.

    Args:
        default: the default: a number, a word, true, false or a tuple.
        description: one phrase, which `ffl options` shows.
        limits: `low` and `high` (included), `above` (excluded) or `choices`.

    Returns:
        The field, to be assigned in a frozen dataclass.

    Raises:
        UserError: if the default has another type.
    """
    if not isinstance(default, bool | int | float | str | tuple):
        raise UserError(
            f"The default of an option must be a number, a word, true, false or a tuple, not {default!r} "
            f"({description})."
        )
    return dataclasses.field(default=default, metadata={"limits": Limits(description, **limits)})


def limits_of(field: "dataclasses.Field[Any]") -> Limits | None:
    """The limits of a dataclass field, or None if the field was not made by `option`."""
    return field.metadata.get("limits")


def check(instance: Any) -> None:
    """Raise a UserError for the first option of a dataclass instance whose value is outside its limits."""
    for field in dataclasses.fields(instance):
        limits = limits_of(field)
        value = getattr(instance, field.name)
        if limits and (complaint := limits.complaint(value)):
            raise UserError(f"{field.name} = {value!r} {complaint} ({limits.description}).")


def make(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """An options dataclass from a TOML table; raises UserError for a wrong type or an unknown `what`."""
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(typing.cast(Any, cls))}
    for name in values:
        if name not in known:
            raise unknown(what, name, known)
    return cls(**{name: _convert(name, value, hints[name]) for name, value in values.items()})


def _convert(name: str, value: Any, kind: Any) -> Any:
    """The value as the type `kind`: whole numbers become floats and lists become tuples, other types must match."""
    if isinstance(kind, types.GenericAlias) and kind.__origin__ is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        if kind.__args__[0] is int and not all(type(item) is int for item in items):
            raise UserError(f"{name} = {value!r} must be a list of whole numbers: write it as [1, 2, 3].")
        return tuple(_convert(name, item, kind.__args__[0]) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, bool):
        value = to_toml_value(value)  # `--set align=true` is read as TOML, where true is not a word
    if kind in _KINDS and type(value) is not kind:
        raise UserError(f"{name} = {value!r} must be {_KINDS[kind]}.")
    return value
