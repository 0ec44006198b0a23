"""Functions and classes that the caller passes: the names by which a configuration records them, and their import."""

import ast
import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from factorized_fl.core.errors import UserError

Brought = Mapping[str, Any]  # by option: functions and classes given in Python, which may have no importable name
NOTHING: Brought = {}


def is_named(text: str) -> bool:
    """Return whether a text has the form "package.module:name"."""
    module, separator, name = text.partition(":")
    return bool(module and separator and name)


def name_of(what: str, value: Any, form: str = "a class or a function") -> str:
    """Return "module:qualname" of a class or function; raise UserError for anything else."""
    if isinstance(value, functools.partial):
        words = [*map(repr, value.args), *(f"{key}={value!r}" for key, value in sorted(value.keywords.items()))]
        return f"{name_of(what, value.func, form)}({', '.join(words)})"
    if not callable(value):
        text = repr(value)
        given = text if len(text) < 60 and "\n" not in text else f"an object of type {type(value).__name__}"
        raise UserError(f"{what} = {given} must be a name, {form}.")
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def import_named(what: str, name: str) -> Callable[..., Any]:
    """Return the class or function "package.module:name"; raise UserError if it cannot be imported.

    Arguments in brackets, as in "nets:Net(width=8)", are passed to it besides its usual arguments.
    """
    bare, bracket, words = name.partition("(")
    module, _, path = bare.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            if not hasattr(found, part):
                raise AttributeError(f"'{module}' has no '{part}'")
            found = getattr(found, part)
        if bracket:
            call = ast.parse(f"f({words}", mode="eval").body
            given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}  # type: ignore[attr-defined]
            found = functools.partial(found, **given)
    except Exception as error:  # importing runs foreign code, which may raise anything
        itself = "the class itself" if what == "model" else "the function itself"
        advice = (
            f"give 'package.module:name' of an installed module or of a file that `ffl --load FILE.py` loads, or in "
            f"Python {itself}."
        )
        raise UserError(f"The {what} '{name}' cannot be imported ({reason_of(error)}): {advice}") from None
    return found


def brought_or_imported(what: str, name: str, brought: Brought) -> Callable[..., Any]:
    """Return the function or class given for this option, or import it by name; raise UserError if neither works."""
    found = brought.get(what)
    if found is not None and name_of(what, found) == name:
        return found
    found = import_named(what, name)
    name_of(what, found)  # raises UserError if it cannot be called
    return found


def reason_of(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
