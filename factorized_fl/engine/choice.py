"""Which engine runs a federation."""

import warnings
from collections.abc import Mapping

import torch
from torch import nn

from factorized_fl.config import Config
from factorized_fl.data.scenarios import Scenario
from factorized_fl.engine import Engine
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.methods import Method
from factorized_fl.nn import Role


def build_engine(
    name: str,
    config: Config,
    method: Method,
    scenario: Scenario,
    models: Mapping[int, nn.Module],
    roles: Mapping[str, Role],
    shared: frozenset[str],
    device: torch.device,
) -> Engine:
    """The fast engine on a GPU if it can run this, else the reference engine and one line that says why."""
    reference = ReferenceEngine(config, method, scenario, models, roles, shared, device)
    if name == "reference" or device.type != "cuda":
        return reference
    reason = _why_not(scenario, models)
    if reason:
        warnings.warn(f"The reference engine runs this, as {reason}.", stacklevel=2)
        return reference
    from factorized_fl.engine.cuda.engine import CudaEngine

    return CudaEngine(reference)


def _why_not(scenario: Scenario, models: Mapping[int, nn.Module]) -> str | None:
    if len(models) > 1:
        return "clients differ in their numbers of classes"
    try:
        from factorized_fl.engine.cuda.stacked import supported
    except ImportError:
        return "Triton is not installed"
    return supported(next(iter(models.values())), scenario.images)
