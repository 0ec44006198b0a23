"""Clients with the caller's arrays: checks, splits, and the scenario made from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.data.groups import split_groups
from factorized_fl.data.rows import Pool, Rows
from factorized_fl.data.scenarios import FEWEST_IMAGES, Client, Scenario

OWN = "own"  # the dataset's name in the configuration of a run with the caller's own data
_MOST_CLASSES = 100_000  # a network has an output for each
Pair = tuple[Any, Any]  # inputs and labels


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of one client: tensors or arrays in memory.

    Args:
        x: inputs, with the examples along the first axis. uint8 [N, C, H, W] are images: they are divided by 255,
            normalised and, with augment="paper", augmented. Floats of any shape [N, ...] and whole numbers such as
            token ids reach the network as they are.
        y: integer labels [N], from 0; or for other tasks numbers [N] or [N, C], such as zeros and ones for C labels.
        test: inputs and labels to test on. Without it a part of `x` is split off by the run's seed (`train_share`).
        validation: inputs and labels that are neither trained nor tested on, for choosing options.
        name: the client's name; by default its number.
        classes: the names of the classes in the order of the labels, or their number, or None for as many as the
            labels show. Clients share their classifiers only if all of them give the same names.
        groups: the group of each example of `x`, such as its patient, where a test part is split off: all examples of a
            group go into the same part.
    """

    x: Any
    y: Any
    test: Pair | None = None
    validation: Pair | None = None
    name: str = ""
    classes: Sequence[str] | int | None = None
    groups: Sequence[Any] | None = None

    def __repr__(self) -> str:
        shape = list(getattr(self.x, "shape", ())) or f"{type(self.x).__name__}"
        count = self.classes if isinstance(self.classes, int) else len(self.classes or ()) or "unnamed"
        return f"<ClientData {self.name or 'without a name'}: inputs {shape}, {count} classes>"


def own_scenario(
    clients: Sequence[ClientData],
    *,
    train_share: float = 0.8,
    test_images: int = 0,
    validated: bool = False,
    seed: int = 1,
    seat: int = 0,
) -> Scenario:
    """Return the scenario of these clients; `test_images` limits the test and validation examples of each.

    With `validated` a client that has test but no validation examples gets a part of its training examples as such.
    `seat` is the number of the first client, which decides its split.

    Raise UserError, naming the client, for data that cannot be used.
    """
    if not clients:
        raise UserError("There are no clients: give a list with at least one ffl.ClientData.")
    members: list[Client] = []
    pool = Pool()
    for k, given in enumerate(clients, seat):
        if not isinstance(given, ClientData):
            raise UserError(f"Client {k + 1} is of type {type(given).__name__}: make it with ffl.ClientData(x, y).")
        name = given.name or f"client {k + 1}"
        if any(name == other.name for other in members):
            raise UserError(f"Two clients are named '{name}': give each its own name.")
        parts = {"train": _pair(given.x, given.y, name, "")}
        for part, pair in (("validation", given.validation), ("test", given.test)):
            if pair is not None:
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise UserError(f"The {part} data of {name} must be a pair: write {part}=(x, y).")
                parts[part] = _pair(*pair, name, f"{part} ")
        for part, (_, y) in parts.items():
            _same_labels(pool.labels[0] if pool.labels else parts["train"][1], y, name, part)
        names = _classes(given.classes, [y for _, y in parts.values()], name)
        for part, (x, _) in parts.items():
            _same_kind(pool.inputs[0] if pool.inputs else parts["train"][0], x, name, part)
        places = {}
        raw = {"train": (given.x, given.y), "validation": given.validation, "test": given.test}
        for part, (x, y) in parts.items():
            places[part] = pool.place(tuple(map(id, raw[part] or ())), x, y)
        if "test" not in places:
            places |= _split(places["train"], train_share, seed, k, name, "validation" in places, given.groups)
        elif validated and "validation" not in places:
            split = _split(places["train"], train_share, seed, k, name, True, given.groups)
            places |= {"train": split["train"], "validation": split["test"]}
        for part in ("validation", "test") if test_images else ():
            order = numpy_rng(seed, "own test images", k, part).permutation(len(places.get(part, ())))
            if len(order) > test_images:
                places[part] = places[part][torch.from_numpy(order[:test_images]).sort().values]
        if len(places["train"]) < FEWEST_IMAGES:
            raise UserError(f"{name} has 1 training example: each client needs at least {FEWEST_IMAGES}.")
        members.append(
            Client(
                name=name,
                domain="own data",
                train=places["train"],
                validation=places.get("validation", torch.empty(0, dtype=torch.int64)),
                test=places["test"],
                labelling=torch.arange(len(names)),
                classes=names,
            )
        )
    inputs, labels = pool.joined()
    images = inputs.dtype == torch.uint8
    channels = inputs.shape[1] if images else 0
    named = all(client.classes is not None and not isinstance(client.classes, int) for client in clients)
    return Scenario(
        images=inputs,
        labels=labels,
        clients=tuple(members),
        labels_agree=named and len({member.classes for member in members}) == 1,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        arrays=not images,
    )


def _pair(x: Any, y: Any, name: str, part: str) -> tuple[Tensor | Rows, Tensor]:
    """Return inputs as uint8, float32 or int64 and labels as int64, both checked."""
    whole = x[:] if isinstance(x, Rows) and x.dtype != torch.uint8 else x
    inputs = whole if isinstance(whole, Rows) else _tensor(whole, f"The {part}inputs of {name}")
    labels = _tensor(y, f"The {part}labels of {name}")
    if len(inputs.shape) < 2:
        raise UserError(f"The {part}inputs of {name} have shape {list(inputs.shape)}: give [N, ...] for N examples.")
    if labels.dim() not in (1, 2) or labels.shape[1:].numel() == 0:
        kind = str(labels.dtype).removeprefix("torch.")
        raise UserError(
            f"The {part}labels of {name} are {kind} {list(labels.shape)}: give integers [N], from 0, or numbers [N, C]."
        )
    if len(inputs) != len(labels):
        raise UserError(f"{name} has {len(inputs)} {part}inputs but {len(labels)} labels: give one label for each.")
    if not inputs.shape.numel():
        raise UserError(f"{name} has no {part}examples: leave this client out, or give it data.")
    if inputs.dtype == torch.uint8 and len(inputs.shape) != 4:
        raise UserError(
            f"The {part}inputs of {name} are uint8 {list(inputs.shape)}: give images as [N, C, H, W], "
            "anything else as floats."
        )
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.float()
        if not inputs.isfinite().all():
            first = int((~inputs.flatten(1).isfinite().all(1)).nonzero()[0])
            raise UserError(f"Example {first} of the {part}inputs of {name} is not finite: replace NaN and infinity.")
    elif isinstance(inputs, Tensor) and inputs.dtype != torch.uint8:
        inputs = inputs.long()
    if labels.dim() == 1 and not labels.is_floating_point():
        return inputs, labels.long()
    if not (finite := labels.reshape(len(labels), -1).isfinite().all(1)).all():
        first = int((~finite).nonzero()[0])
        raise UserError(f"Example {first} of the {part}labels of {name} is not finite: replace NaN and infinity.")
    return inputs, labels.float().reshape(len(labels), -1)


def _tensor(value: Any, what: str) -> Tensor:
    """Return a tensor or an array as a CPU tensor of numbers that needs no gradient."""
    if isinstance(value, Tensor):
        found = value.detach().cpu()
    else:
        try:
            # A copy if the array cannot be written to, because PyTorch warns about those.
            found = torch.from_numpy(np.require(value, requirements=["C", "W"]))
        except (TypeError, ValueError):
            raise UserError(f"{what} cannot be read as numbers: give a tensor or an array of one shape.") from None
    if found.is_complex() or found.is_quantized or found.layout != torch.strided:
        kind = str(found.dtype).removeprefix("torch.")
        raise UserError(f"{what} are {kind}, {found.layout}: give a dense tensor of real numbers.")
    return found


def _classes(given: Sequence[str] | int | None, labels: Sequence[Tensor], name: str) -> tuple[str, ...]:
    """Return the names of the classes; raise UserError if a label has none."""
    if labels[0].is_floating_point():
        return _outputs(given, labels[0].shape[1], name)
    low, high = min(int(y.min()) for y in labels), max(int(y.max()) for y in labels)
    given = max(high + 1, 0) if given is None else given
    if isinstance(given, int) and given > _MOST_CLASSES:
        raise UserError(
            f"{name} would have {given} classes, but a client can have {_MOST_CLASSES} at most: number the classes "
            "from 0 without gaps."
        )
    if isinstance(given, int) and not isinstance(given, bool):
        names = tuple(str(label) for label in range(given))
    elif isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        names = tuple(given)
    else:
        raise UserError(f"The classes of {name} are {given!r}: give a list of names, or their number.")
    if low < 0 or high >= len(names):
        raise UserError(
            f"The labels of {name} run from {low} to {high}, but the number of classes is {len(names)}: "
            "number them from 0, or name all classes."
        )
    if len(names) < 2:
        raise UserError(f"{name} has only one class: there is nothing to learn; give classes= with all of them.")
    if len(set(names)) < len(names):
        raise UserError(f"{name} has two classes of the same name: give each its own.")
    return names


def _outputs(given: Sequence[str] | int | None, count: int, name: str) -> tuple[str, ...]:
    """Return the names of the numbers that each example has as its label; raise UserError if there are other names."""
    named = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    names = tuple(given) if named and not isinstance(given, int) and given else tuple(map(str, range(count)))
    if (given is not None and not named and given != count) or len(set(names)) != count:
        raise UserError(
            f"The classes of {name} are {given!r}, but the label of an example is {count} numbers: give {count} names."
        )
    return names


def _same_kind(first: Tensor | Rows, x: Tensor | Rows, name: str, part: str) -> None:
    """Raise UserError if inputs differ from the first client's in shape or type."""
    if first.shape[1:] == x.shape[1:] and first.dtype == x.dtype:
        return
    kinds = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape[1:])}" for each in (x, first)]
    raise UserError(
        f"The {part} inputs of {name} are {kinds[0]} each, but the first client's are {kinds[1]}: "
        "give all clients inputs of one shape and type."
    )


def _same_labels(first: Tensor, y: Tensor, name: str, part: str) -> None:
    """Raise UserError if labels are classes here and numbers at the first client, or as many numbers as there."""
    if first.dtype != y.dtype or first.shape[1:] != y.shape[1:]:
        kinds = ["classes" if each.dim() == 1 else f"numbers [N, {each.shape[1]}]" for each in (y, first)]
        raise UserError(
            f"The {part} labels of {name} are {kinds[0]}, but the first client's are {kinds[1]}: "
            "give all clients labels of one kind."
        )


def _split(
    at: Tensor, share: float, seed: int, k: int, name: str, validated: bool, groups: Sequence[Any] | None
) -> dict[str, Tensor]:
    """Return the positions of training, validation and test examples; no validation part if there is one already."""
    if groups is not None:
        return split_groups(at, groups, share, numpy_rng(seed, "own split", k), name, validated)
    order = at[torch.from_numpy(numpy_rng(seed, "own split", k).permutation(len(at)))]
    train = int(share * len(order))
    test = len(order) if validated else train + (len(order) - train) // 2
    if train < FEWEST_IMAGES or test == train:
        raise UserError(
            f"{name} has {len(order)} examples, too few to split with train_share = {share:g}: "
            "give test=(x, y), more examples, or another share."
        )
    parts = {"train": order[:train], "test": order[train:test], "validation": order[test:]}
    return {part: held.sort().values for part, held in parts.items() if part != "validation" or not validated}
