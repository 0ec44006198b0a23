"""The choice of the engine that runs a federation."""

import warnings

import torch

from factorized_fl.core.clients import Engine
from factorized_fl.engine import Task
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.methods import Method


def build_engine(name: str, task: Task) -> Engine:
    """The fast engine on a GPU if it supports the run, else the reference engine and one warning that says why."""
    if task.device.type == "cuda":  # for both engines; PyTorch's own choice is TF32
        torch.backends.cudnn.allow_tf32 = task.config.precision != "fp32"
    reference = ReferenceEngine(task)
    if name == "reference" or task.device.type != "cuda":
        return reference
    if reason := _why_not(task):
        instead = ", with TF32 convolutions" if task.config.precision == "bf16" else ""
        warnings.warn(f"The reference engine runs this{instead}, as {reason}.", stacklevel=2)
        return reference
    from factorized_fl.engine.resnet9_cuda.engine import CudaEngine

    return CudaEngine(reference)


def one_by_one(method: Method) -> bool:
    """Whether a class that defines `gradient` or `finish` does not itself declare `side_by_side`."""
    owners = [next(c for c in type(method).__mro__ if hook in vars(c)) for hook in ("gradient", "finish")]
    return not all(vars(owner).get("side_by_side", False) for owner in owners)


def trains_otherwise(method: Method) -> bool:
    """Whether the method overrides hooks of local training that only the reference engine calls."""
    hooks = ("phases", "keeps", "receive", "extra_up", "extra_down")
    own = [hook for hook in hooks if getattr(type(method), hook) is not getattr(Method, hook)]
    return bool(own or method.further_models)


def _why_not(task: Task) -> str | None:
    """Why the fast engine cannot run this, or None."""
    if trains_otherwise(task.method):
        return f"{task.method.name} has local training of its own"
    if task.scenario.arrays or task.config.has_own_model:
        return "the network or its inputs are your own"
    if len(task.models) > 1:
        return "clients differ in their numbers of classes"
    if one_by_one(task.method):
        return f"{task.method.name} has a gradient or finish of its own and does not say side_by_side = True"
    try:
        from factorized_fl.engine.resnet9_cuda.stacked import supported
    except ImportError:
        return "Triton is not installed"
    return supported(next(iter(task.models.values())), task.scenario.images, task.config.batch_size)
