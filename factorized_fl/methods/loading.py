"""Methods, networks, data and functions of the user, from a Python file."""

import importlib.util
import sys
import traceback
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.methods import METHODS

_PREFIX = "factorized_fl_loaded_"


def load_methods(path: Path) -> None:
    """Run a Python file of the user, with the rights of any program that the user starts.

    Methods register themselves. Networks, data and other functions are found by "FILE:name", without ".py".
    """
    before = dict(METHODS)
    name = f"{_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"There is no Python file '{path}': name one with your methods, networks or data.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their types up there
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == spec.origin]  # absolute, whatever was given
        where = f", line {lines[-1]}" if lines else ""
        reason = f"{type(error).__name__}: {error}{where}"
        raise UserError(f"'{path}' cannot be loaded ({reason}): run it by itself with Python to see more.") from error
    defined = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
    if before == METHODS and not defined:
        raise UserError(f"'{path}' registers no method: put @ffl.register before its class, or define functions.")
    other = sys.modules.get(path.stem)
    if other is None or other.__name__.startswith(_PREFIX):
        sys.modules[path.stem] = module
