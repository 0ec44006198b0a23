"""The choice of the engine that runs a federation."""

import warnings

import torch

from factorized_fl.core.clients import Engine
from factorized_fl.engine import Work
from factorized_fl.engine.compiled.engine import CompiledEngine
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.methods import Method
from factorized_fl.tasks.losses import LOSSES


def build_engine(name: str, work: Work) -> Engine:
    """Returns the engine "reference" or "compiled", or with "auto" the fastest that supports the run.

    "auto" is the reference engine on a CPU, and on a GPU with one warning that says why.
    """
    if work.device.type == "cuda":  # for all engines; PyTorch's own choice is TF32
        torch.backends.cudnn.allow_tf32 = work.config.precision != "fp32"
    if name == "compiled" and work.budget is None:
        return CompiledEngine(work)
    if name == "reference" or work.device.type != "cuda":
        return ReferenceEngine(work)
    reason = _why_not(work)
    if reason and work.budget is None and capturable(work.method):
        return CompiledEngine(work)
    if reason:
        instead = ", with TF32 convolutions" if work.config.precision == "bf16" else ""
        if work.budget is None:
            reason += f" and the gradient of {work.method.name} does not say capturable = True"
        warnings.warn(f"The reference engine runs this{instead}, as {reason}.", stacklevel=2)
        return ReferenceEngine(work)
    from factorized_fl.engine.resnet9_cuda.engine import CudaEngine

    return CudaEngine(ReferenceEngine(work))


def _owner(method: Method, hook: str) -> type:
    """The class that defines a hook of the method."""
    return next(c for c in type(method).__mro__ if hook in vars(c))


def capturable(method: Method) -> bool:
    """Whether the class that defines `gradient` declares `capturable` or `side_by_side`."""
    own = vars(_owner(method, "gradient"))
    return bool(own.get("capturable", False) or own.get("side_by_side", False))


def one_by_one(method: Method) -> bool:
    """Whether a class that defines `gradient` or `finish` does not itself declare `side_by_side`."""
    owners = [_owner(method, hook) for hook in ("gradient", "finish")]
    return not all(vars(owner).get("side_by_side", False) for owner in owners)


def trains_otherwise(method: Method) -> bool:
    """Whether the method overrides hooks of local training that only the reference engine calls."""
    hooks = ("phases", "keeps", "receive", "extra_up", "extra_down")
    own = [hook for hook in hooks if getattr(type(method), hook) is not getattr(Method, hook)]
    return bool(own or method.further_models or method.counts_steps)


def _trained_otherwise(work: Work) -> str | None:
    """The first option of training that the fast engine does not support, or None."""
    if work.task.loss != LOSSES["cross-entropy"] or work.task.class_weights:
        return "the loss"
    if not work.task.counts_only:
        return "the choice of metrics"
    return work.training.differs


def _why_not(work: Work) -> str | None:
    """The reason why the fast engine cannot run this, or None."""
    if work.budget is not None:
        return "training is differentially private"
    if trains_otherwise(work.method):
        return f"{work.method.name} has local training of its own"
    if work.scenario.arrays or work.config.has_own_model:
        return "the network or its inputs are your own"
    if other := _trained_otherwise(work):
        return f"{other} is not the default"
    if len(work.models) > 1:
        return "clients differ in their numbers of classes"
    if one_by_one(work.method):
        return f"{work.method.name} has a gradient or finish of its own and does not say side_by_side = True"
    try:
        from factorized_fl.engine.resnet9_cuda.stacked import supported
    except ImportError:
        return "Triton is not installed"
    return supported(next(iter(work.models.values())), work.scenario.images, work.config.batch_size)
