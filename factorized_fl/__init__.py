"""Agnostic personalised federated learning: train together although labels, tasks and domains differ."""

__version__ = "0.1.0"

from factorized_fl.api import compare, configure, report, run
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.options import option
from factorized_fl.core.views import Batch, Local, Mixing, Phase, Server, Tensors
from factorized_fl.methods import Card, Method, register
from factorized_fl.nn import Role, describe, factorize, fold

__all__ = [
    "Batch",
    "Card",
    "Config",
    "Local",
    "Method",
    "Mixing",
    "Phase",
    "Role",
    "Server",
    "Tensors",
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
