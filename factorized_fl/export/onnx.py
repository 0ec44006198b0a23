"""The ONNX form of an exported model."""

import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import plain_errors, write_atomically
from factorized_fl.export.package import ABOUT, PIXELS, WEIGHTS, Package
from factorized_fl.nn.models import MODELS

Scores = Callable[[torch.Tensor], torch.Tensor]  # a model's inputs to class scores


def onnx_scores(path: Path, package: Package) -> Scores:
    """Return the exported ONNX model as a function; raise UserError if it does not fit its description."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        raise UserError(f"The model '{path}' cannot be read ({error}): export it again.") from None

    takes, gives = session.get_inputs()[0].shape[1:], session.get_outputs()[0].shape[1:]
    if [*takes, *gives] != [*package.input_shape, len(package.classes)]:
        raise UserError(f"'{path.parent / ABOUT}' does not fit the model '{path}': export it again.")

    name = session.get_inputs()[0].name

    def scores(inputs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])

    return scores


def warn_without_onnx(package: Package, error: Exception) -> None:
    """Warn that an own network has no ONNX form."""
    why = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200].rstrip(".")
    warnings.warn(f"ONNX cannot hold the network {package.model} ({why}): use {WEIGHTS} with PyTorch.", stacklevel=4)


def write_onnx(model: nn.Module, path: Path, package: Package) -> bool:
    """Write the ONNX file and return True.

    Warn and return False if its libraries are not installed, or if ONNX cannot hold a network that is not built in.
    """
    with plain_errors(path.parent):
        path.unlink(missing_ok=True)
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        warnings.warn('No ONNX file was made: pip install "factorized-fl[onnx]" for that.', stacklevel=3)
        return False
    example, name = torch.cat([package.example()] * 2), PIXELS if package.inputs == PIXELS else "inputs"
    silenced = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (example,),
                input_names=[name],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("images")},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # PyTorch's export has no common base class for its exceptions
        if package.model in MODELS:
            raise
        warn_without_onnx(package, error)
        return False
    finally:
        logging.disable(silenced)
    assert program is not None
    write_atomically(path, program.model_proto.SerializeToString())
    return True
