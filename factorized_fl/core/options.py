"""Options with limits: fields of frozen dataclasses that know their range, check it and explain themselves."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from factorized_fl.core.errors import UserError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What an option means and which values it takes."""

    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: Sequence[str] = ()

    def complaint(self, value: Any) -> str | None:
        """What is wrong with a value of the right type, or nothing."""
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


def option(default: Any, help: str, **limits: Any) -> Any:
    """A dataclass field with its meaning and its limits."""
    if not isinstance(default, bool | int | float | str | tuple):
        raise UserError(f"An option's default is a number, a word, true, false or a tuple, not {default!r} ({help}).")
    return dataclasses.field(default=default, metadata={"limits": Limits(help, **limits)})


def check(instance: Any) -> None:
    """Raise a UserError for the first option whose value is out of its range."""
    for field in dataclasses.fields(instance):
        limits = field.metadata.get("limits")
        value = getattr(instance, field.name)
        if limits and (complaint := limits.complaint(value)):
            raise UserError(f"{field.name} = {value!r} {complaint} ({limits.help}).")


def make(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Build an options dataclass from loosely typed values; unknown names and wrong types are user errors."""
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(typing.cast(Any, cls))}
    for name in values:
        if name not in known:
            raise unknown(what, name, known)
    return cls(**{name: _convert(name, value, hints[name]) for name, value in values.items()})


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Accept what TOML gives: whole numbers for floats, lists for tuples; anything else must fit exactly."""
    if isinstance(kind, types.GenericAlias) and kind.__origin__ is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        if kind.__args__[0] is int and not all(type(item) is int for item in items):
            raise UserError(f"{name} = {value!r} must be a list of whole numbers: write it as [1, 2, 3].")
        return tuple(_convert(name, item, kind.__args__[0]) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (bool, int, float, str) and type(value) is not kind:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        raise UserError(f"{name} = {value!r} must be {names[kind]}.")
    return value
