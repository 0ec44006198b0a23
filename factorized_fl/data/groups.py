"""Groups of examples that must stay together, such as those of one patient: splits, and checks of given splits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorized_fl.core.errors import UserError

_PARTS = ("training", "validation", "test")


def split_groups(
    at: Tensor, groups: Sequence[Any], share: float, rng: np.random.Generator, name: str, validated: bool
) -> dict[str, Tensor]:
    """Return the positions of training, test and validation examples, with all examples of a group in one part.

    Groups are drawn at random: into the training part until it has its share of the examples, then into the test part
    until it has half of the others, then into the validation part. With `validated` the test part takes all of the
    others. Raise UserError for the wrong number of groups, or too few of them.
    """
    if len(groups) != len(at):
        raise UserError(f"{name} has {len(at)} examples and the groups of {len(groups)}: give one for each example.")
    names, member, sizes = np.unique(np.asarray(groups).astype(str), return_inverse=True, return_counts=True)
    parts = 2 if validated else 3
    if len(names) < parts:
        raise UserError(
            f"{name} has examples of {len(names)} groups, too few to split without dividing one: at least {parts} are "
            "needed, or a column that splits them."
        )
    order = rng.permutation(len(names))
    before = np.cumsum(sizes[order]) - sizes[order]  # examples in the groups drawn earlier
    train = int(np.clip((before < share * len(at)).sum(), 1, len(names) - parts + 1))
    rest = len(at) - before[train]
    test = len(names) if validated else train + int((before[train:] - before[train] < rest / 2).sum())
    test = test if validated else min(max(test, train + 1), len(names) - 1)
    drawn = {"train": order[:train], "test": order[train:test], "validation": order[test:]}
    found = {part: at[torch.from_numpy(np.isin(member, chosen))] for part, chosen in drawn.items()}
    return {part: held for part, held in found.items() if part != "validation" or not validated}


def check_groups(groups: Sequence[str], parts: Sequence[int], table: str, column: str) -> None:
    """Raise UserError if the rows of a group are in two of the parts 0 (training), 1 (validation) and 2 (test)."""
    first: dict[str, tuple[int, int]] = {}
    for row, (group, part) in enumerate(zip(groups, parts, strict=True), start=1):
        earlier_row, earlier = first.setdefault(group, (row, part))
        if earlier != part:
            raise UserError(
                f"'{group}' in the column '{column}' of {table} is in two parts: row {earlier_row} is for "
                f"{_PARTS[earlier]}, row {row} for {_PARTS[part]}. Put all its rows into one part."
            )
