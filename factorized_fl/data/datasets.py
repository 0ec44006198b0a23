"""Clients from PyTorch datasets and their subsets, which keep the caller's own partition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset

from factorized_fl.core.errors import UserError
from factorized_fl.data.clients import ClientData, Pair


def from_datasets(
    datasets: Sequence[Any],
    *,
    test: Dataset[Any] | Sequence[Any] | None = None,
    names: Sequence[str] = (),
    classes: Sequence[str] | None = None,
) -> list[ClientData]:
    """Make one client of each dataset; every example is read once, in order, and kept in memory.

    Args:
        datasets: torch datasets or subsets of them with examples (input, label). Inputs are tensors, arrays or PIL
            images, which become uint8 [C, H, W].
        test: one dataset that all clients are tested on, or a list with one for each client. Without it a part of
            each dataset is split off.
        names: the names of the clients.
        classes: the names of the classes of all clients. By default they are those that a dataset has as its
            attribute `classes`; subsets of one dataset have the same classes even if it does not name them.

    Returns:
        One client for each dataset.

    Raises:
        UserError: if a dataset cannot be read; the message names the client.
    """
    given = list(datasets)
    called = list(names) or [f"client {k + 1}" for k in range(len(given))]
    tests: list[Any] = list(test) if isinstance(test, list | tuple) else [test] * len(given)
    for what, found in (("names", called), ("test datasets", tests)):
        if len(found) != len(given):
            raise UserError(f"There are {len(given)} datasets but {len(found)} {what}: give one for each client.")
    pairs = [_read(dataset, name) for dataset, name in zip(given, called, strict=True)]
    read: dict[int, Pair] = {}  # a dataset that all clients are tested on is read once
    for dataset, name in zip(tests, called, strict=True):
        if dataset is not None and id(dataset) not in read:
            read[id(dataset)] = _read(dataset, name, "test ")
    held = [None if dataset is None else read[id(dataset)] for dataset in tests]
    bases = [_base(dataset) for dataset in given]
    if classes is None and len(bases) > 1 and all(base is bases[0] for base in bases):
        labels = torch.cat([y for pair in (*pairs, *held) if pair for y in pair[1:]])
        count = int(labels.max()) + 1 if len(labels) else 0
        classes = _named(bases[0]) or [str(label) for label in range(count)]
    return [
        ClientData(x, y, test=pair, name=name, classes=_named(base) if classes is None else list(classes))
        for (x, y), pair, name, base in zip(pairs, held, called, bases, strict=True)
    ]


def _base(dataset: Any) -> Any:
    """Return the dataset that a subset, or a subset of a subset, is taken from."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _named(dataset: Any) -> list[str] | None:
    """Return the names of a dataset's classes, or None if it does not have them."""
    found = getattr(dataset, "classes", None)
    return [str(name) for name in found] if isinstance(found, list | tuple) else None


def _read(dataset: Any, name: str, part: str = "") -> tuple[Tensor, Tensor]:
    """Return all inputs and labels of a dataset."""
    try:
        count = len(dataset)
    except Exception as error:  # a dataset is foreign code, which may raise anything
        advice = "give a dataset with a length and examples by number."
        raise UserError(f"The {part}dataset of {name} has no length ({type(error).__name__}): {advice}") from None
    inputs: list[Tensor] = []
    labels: list[int] = []
    for index in range(count):
        try:
            x, y = dataset[index]
            x, y = _input(x), torch.as_tensor(y)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UserError(
                f"The {part}dataset of {name} has {count} examples, but number {index} cannot be read as "
                f"(input, label): {type(error).__name__}: {reason}."
            ) from error
        if y.numel() != 1 or y.is_floating_point():
            raise UserError(f"Example {index} of {name} has the label {y.tolist()}: labels must be whole numbers.")
        if inputs and (x.shape, x.dtype) != (inputs[0].shape, inputs[0].dtype):
            kinds = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (x, inputs[0])]
            raise UserError(
                f"Example {index} of {name} is {kinds[0]}, but the first one is {kinds[1]}: "
                "let the dataset give inputs of one shape and type."
            )
        inputs.append(x)
        labels.append(int(y))
    if not inputs:
        raise UserError(f"The {part}dataset of {name} has no examples: leave this client out, or give it data.")
    return torch.stack(inputs), torch.tensor(labels)


def _input(x: Any) -> Tensor:
    """Return one input as a tensor."""
    if isinstance(x, Image.Image):
        pixels = np.array(x)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    return torch.as_tensor(x).detach().cpu()
