"""Agnostic personalised federated learning: train together although labels, tasks and domains differ."""

__version__ = "0.1.0"

from factorized_fl.api import compare, configure, report, run
from factorized_fl.config import Config
from factorized_fl.errors import UserError
from factorized_fl.methods import Method, Mixing, Server, register
from factorized_fl.nn import Role, describe, factorize, fold
from factorized_fl.options import option

__all__ = [
    "Config",
    "Method",
    "Mixing",
    "Role",
    "Server",
    "UserError",
    "compare",
    "configure",
    "describe",
    "factorize",
    "fold",
    "option",
    "register",
    "report",
    "run",
]
