from factorized_fl.api import compare, configure, export, report, run
from factorized_fl.audit.run import audit
from factorized_fl.config import Config
from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import Dense, Groups, Mean, Sparse, weighted_mean
from factorized_fl.core.options import option
from factorized_fl.core.roles import Role
from factorized_fl.core.views import Batch, Local, Mixing, Phase, Server, Tensors
from factorized_fl.data.clients import ClientData
from factorized_fl.data.datasets import from_datasets
from factorized_fl.data.partitions import partition
from factorized_fl.data.tables import from_file, from_hf
from factorized_fl.methods import Card, Method, register
from factorized_fl.nn import describe, factorize, fold
from factorized_fl.simulate.callbacks import EarlyStopping, RoundState
from factorized_fl.sweeps import Sweep, SweepRow, sweep
from factorized_fl.tasks.metrics import Metric

__version__: str

__all__ = [
    "Batch",
    "Card",
    "ClientData",
    "Config",
    "Dense",
    "EarlyStopping",
    "Groups",
    "Local",
    "Mean",
    "Method",
    "Metric",
    "Mixing",
    "Phase",
    "Role",
    "RoundState",
    "Server",
    "Sparse",
    "Sweep",
    "SweepRow",
    "Tensors",
    "UserError",
    "audit",
    "compare",
    "configure",
    "describe",
    "export",
    "factorize",
    "fold",
    "from_datasets",
    "from_file",
    "from_hf",
    "option",
    "partition",
    "register",
    "report",
    "run",
    "sweep",
    "weighted_mean",
]
