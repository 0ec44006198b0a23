"""Agnostic personalised federated learning: clients train together although their labels, tasks and domains differ.

Public names load on first use (PEP 562), so `import factorized_fl` and the command line start without PyTorch. The stub
`__init__.pyi` declares the same names for type checkers.
"""

import gc
from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_MODULES = {
    "api": ("compare", "configure", "export", "report", "run"),
    "audit.run": ("audit",),
    "config": ("Config",),
    "data.clients": ("ClientData",),
    "data.datasets": ("from_datasets",),
    "data.partitions": ("partition",),
    "data.tables": ("from_file", "from_hf"),
    "core.errors": ("UserError",),
    "core.mixing": ("Dense", "Groups", "Mean", "Sparse", "weighted_mean"),
    "core.options": ("option",),
    "core.roles": ("Role",),
    "core.views": ("Batch", "Local", "Mixing", "Phase", "Server", "Tensors"),
    "simulate.callbacks": ("EarlyStopping", "RoundState"),
    "sweeps": ("Sweep", "SweepRow", "sweep"),
    "tasks.metrics": ("Metric",),
    "methods": ("Card", "Method", "register"),
    "nn": ("describe", "factorize", "fold"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)

# The first import of the package `factorized_fl.report` sets the attribute `report` of this module, which would hide
# the function `report`; the same holds for `audit` and `export`. These packages are empty. They are imported here so
# that this happens now, and the attributes are removed.
for _name in ("audit", "export", "report"):
    import_module(f"{__name__}.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # what is imported stays: looking for garbage meanwhile takes an eighth of the time
    try:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    finally:
        if collects:
            gc.enable()
    globals()[name] = value  # later accesses do not reach this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
