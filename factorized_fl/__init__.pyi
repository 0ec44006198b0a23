from factorized_fl.api import compare, configure, report, run
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.options import option
from factorized_fl.methods import Batch, Local, Method, Mixing, Server, Tensors, register
from factorized_fl.nn import Role, describe, factorize, fold

__version__: str

__all__ = [
    "Batch",
    "Config",
    "Local",
    "Method",
    "Mixing",
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
