"""One dataset, divided between clients in each way."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import factorized_fl as ffl
from factorized_fl.core.errors import UserError


def whole(count: int = 120, classes: int = 6) -> ffl.ClientData:
    return ffl.ClientData(torch.arange(count).view(-1, 1).float(), np.arange(count) % classes)


@given(how=st.sampled_from(["iid", "dirichlet", "classes"]), clients=st.integers(3, 9), seed=st.integers(0, 5))
def test_every_example_has_one_client(how: str, clients: int, seed: int) -> None:
    parts = ffl.partition(whole(), clients, how, seed=seed)
    assert sorted(int(x) for part in parts for x in part.x) == list(range(120))
    assert [part.name for part in parts] == [f"client {k + 1}" for k in range(clients)]
    assert {tuple(part.classes) for part in parts} == {("0", "1", "2", "3", "4", "5")}
    again = ffl.partition(whole(), clients, how, seed=seed)
    assert all(torch.equal(one.x, two.x) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_client_has_so_many_classes(count: int) -> None:
    parts = ffl.partition(whole(), 6, "classes", classes_per_client=count)
    assert [len(set(part.y.tolist())) for part in parts] == [count] * 6
    assert {len(part.y) for part in parts} == {20}


def test_sizes_are_in_proportion() -> None:
    assert [len(part.y) for part in ffl.partition(whole(), 3, sizes=[1, 2, 3])] == [20, 40, 60]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 61}, "120 examples are too few for 61 clients"),
        ({"clients": 3, "how": "shards"}, "how = 'shards' must be one of iid, dirichlet, classes"),
        ({"clients": 3, "sizes": [1, 2]}, "must be 3 numbers above 0"),
        ({"clients": 2, "sizes": [1, 999]}, "Client 1 would have 0 examples"),
        ({"clients": 3, "how": "classes", "classes_per_client": 7}, "must be from 1 to the number of classes, 6"),
        ({"clients": 2, "how": "classes", "classes_per_client": 2}, "cannot hold all 6 classes"),
        ({"clients": 3, "how": "dirichlet", "alpha": 0.0}, "alpha = 0.0 must be above 0"),
    ],
)
def test_what_cannot_be_divided_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ffl.partition(whole(), **arguments)


def test_a_list_with_two_clients_cannot_be_divided() -> None:
    with pytest.raises(UserError, match="divides the data of one client, but there are 2"):
        ffl.partition([whole(), whole()], 2)
