"""Groups such as patients are never divided: splits by groups, checks of given splits, and columns of a table."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import factorized_fl as ffl
from factorized_fl.core.errors import UserError
from factorized_fl.data.clients import own_scenario
from factorized_fl.data.groups import check_groups, split_groups


@given(st.lists(st.integers(0, 9), min_size=3, max_size=60), st.integers(0, 5), st.floats(0.3, 0.8), st.booleans())
def test_every_example_is_in_one_part_and_every_group_in_one(
    groups: list[int], seed: int, share: float, validated: bool
) -> None:
    at, few = torch.arange(len(groups)) + 7, len(set(groups)) < (2 if validated else 3)
    if few:
        with pytest.raises(UserError, match="too few to split without dividing one"):
            split_groups(at, groups, share, np.random.default_rng(seed), "aster", validated)
        return
    parts = split_groups(at, groups, share, np.random.default_rng(seed), "aster", validated)
    assert parts.keys() == ({"train", "test"} if validated else {"train", "validation", "test"})
    assert sorted(torch.cat([*parts.values()]).tolist()) == at.tolist()
    held = [{groups[i - 7] for i in part.tolist()} for part in parts.values()]
    assert all(held)
    assert sum(map(len, held)) == len(set(groups))


def test_equal_groups_are_split_by_their_share() -> None:
    """Twenty patients with two images each: 12 train, 4 are for the test, 4 for validation."""
    groups = [f"p{i // 2}" for i in range(40)]
    parts = split_groups(torch.arange(40), groups, 0.6, np.random.default_rng(0), "aster", False)
    assert {name: len(part) for name, part in parts.items()} == {"train": 24, "test": 8, "validation": 8}


def test_wrong_numbers_of_groups() -> None:
    with pytest.raises(UserError, match="aster has 3 examples and the groups of 2: give one for each example"):
        split_groups(torch.arange(3), ["a", "b"], 0.5, np.random.default_rng(0), "aster", False)


def test_a_patient_in_both_parts_is_named_with_its_rows() -> None:
    check_groups(["p1", "p2", "p1"], [0, 2, 0], "'t.csv'", "patient")
    with pytest.raises(UserError) as error:
        check_groups(["p1", "p2", "p3", "p1"], [0, 2, 1, 2], "'t.csv'", "patient")
    assert str(error.value) == (
        "'p1' in the column 'patient' of 't.csv' is in two parts: row 1 is for training, row 4 for test. "
        "Put all its rows into one part."
    )


def write_csv(path: Path, splits: list[str] | None = None) -> Path:
    """Twelve rows of six patients, two classes."""
    header = "f,label,patient" + (",part" if splits else "")
    rows = [f"{i}.5,{'ab'[i % 2]},p{i // 2}" + (f",{splits[i]}" if splits else "") for i in range(12)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_table_keeps_patients_together(tmp_path: Path) -> None:
    clients = ffl.from_file(write_csv(tmp_path / "t.csv"), features=["f"], group="patient")
    for seed in range(5):
        scenario = own_scenario(clients, train_share=0.5, seed=seed)
        (client,) = scenario.clients
        parts = [{i // 2 for i in part.tolist()} for part in (client.train, client.validation, client.test)]
        assert sum(map(len, parts)) == 6
        assert [len(part) for part in parts] == [3, 1, 2] or [len(part) for part in parts] == [3, 2, 1]


def test_a_split_that_divides_a_patient_is_refused(tmp_path: Path) -> None:
    good = write_csv(tmp_path / "good.csv", ["train"] * 8 + ["test"] * 4)
    (client,) = ffl.from_file(good, features=["f"], split="part", group="patient")
    assert len(client.x) == 8
    bad = write_csv(tmp_path / "bad.csv", ["train"] * 7 + ["test"] * 5)
    with pytest.raises(UserError, match=r"'p3' in the column 'patient' of .* row 7 is for training, row 8 for test"):
        ffl.from_file(bad, features=["f"], split="part", group="patient")
    with pytest.raises(UserError, match=r"'p0' in the column 'patient' .* is in two parts"):
        ffl.from_file(good, features=["f"], test=good, group="patient")
    with pytest.raises(UserError, match=r"Unknown column of .* 'person'"):
        ffl.from_file(good, features=["f"], group="person")
