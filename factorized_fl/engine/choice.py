"""Which engine runs a federation."""

import warnings

import torch

from factorized_fl.engine import Engine, Task
from factorized_fl.engine.reference import ReferenceEngine


def build_engine(name: str, task: Task) -> Engine:
    """The fast engine on a GPU if it can run this, else the reference engine and one line that says why."""
    if task.device.type == "cuda":  # for both engines; PyTorch's own choice is TF32
        torch.backends.cudnn.allow_tf32 = task.config.precision != "fp32"
    reference = ReferenceEngine(task)
    if name == "reference" or task.device.type != "cuda":
        return reference
    if reason := _why_not(task):
        instead = ", with TF32 convolutions" if task.config.precision == "bf16" else ""
        warnings.warn(f"The reference engine runs this{instead}, as {reason}.", stacklevel=2)
        return reference
    from factorized_fl.engine.cuda.engine import CudaEngine

    return CudaEngine(reference)


def _why_not(task: Task) -> str | None:
    if len(task.models) > 1:
        return "clients differ in their numbers of classes"
    try:
        from factorized_fl.engine.cuda.stacked import supported
    except ImportError:
        return "Triton is not installed"
    return supported(next(iter(task.models.values())), task.scenario.images, task.config.batch_size)
