from factorized_fl.api import compare, configure, report, run
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Batch, Local, Mixing, Phase, Server, Tensors
from factorized_fl.methods import Card, Method, register
from factorized_fl.nn import describe, factorize, fold

__version__: str

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
