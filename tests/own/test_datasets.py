"""Clients from torch datasets."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

import factorized_fl as ffl
from factorized_fl.data.clients import own_scenario

WHOLE = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12) % 3)
TEST = TensorDataset(torch.zeros(3, 2), torch.arange(3))


class Listed(Dataset):
    """A dataset of given examples that may lie about its length."""

    def __init__(self, examples: list, length: int | None = None, classes: Any = None) -> None:
        self.examples, self.length, self.classes = examples, length, classes

    def __len__(self) -> int:
        return len(self.examples) if self.length is None else self.length

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


def test_subsets_keep_their_partition_and_agree_on_their_classes() -> None:
    parts = [Subset(WHOLE, [5, 0, 3]), Subset(Subset(WHOLE, range(6, 12)), [0, 5, 1])]
    clients = ffl.from_datasets(parts, test=TEST, names=["north", "south"])
    assert [client.name for client in clients] == ["north", "south"]
    assert clients[0].x.tolist() == [[10, 11], [0, 1], [6, 7]]
    assert clients[0].y.tolist() == [2, 0, 0]
    assert clients[1].x[:, 0].tolist() == [12, 22, 14]
    assert clients[0].test is clients[1].test
    scenario = own_scenario(clients)
    assert scenario.labels_agree
    assert scenario.clients[0].classes == ("0", "1", "2")


def test_classes_are_those_of_the_dataset_or_the_callers() -> None:
    examples = [(np.ones(3), np.int64(label)) for label in (0, 1, 0)]
    cats, dogs = (Listed(examples, classes=[f"no {animal}", animal]) for animal in ("cat", "dog"))
    clients = ffl.from_datasets([cats, dogs], test=[cats, dogs])
    assert [client.classes for client in clients] == [["no cat", "cat"], ["no dog", "dog"]]
    assert not own_scenario(clients).labels_agree
    assert own_scenario(ffl.from_datasets([cats, dogs], test=cats, classes=["no", "yes"])).labels_agree
    unnamed = ffl.from_datasets([Listed(examples), Listed(examples)], test=cats)
    assert not own_scenario(unnamed).labels_agree


def test_pictures_become_bytes() -> None:
    grey, colour = Image.new("L", (5, 4), 7), Image.new("RGB", (5, 4), (1, 2, 3))
    for picture, shape in ((grey, (2, 1, 4, 5)), (colour, (2, 3, 4, 5))):
        client = ffl.from_datasets([Listed([(picture, 0), (picture, 1)])])[0]
        assert client.x.dtype == torch.uint8
        assert client.x.shape == shape
    assert client.x[0, :, 0, 0].tolist() == [1, 2, 3]


def test_clients_of_datasets_train(tmp_path) -> None:
    clients = ffl.from_datasets([Subset(WHOLE, range(0, 6)), Subset(WHOLE, range(6, 12))], test=TEST)
    run = ffl.run(clients, tmp_path / "run", model="tests.own.nets:table_net", method="fedavg", rounds=1, epochs=1)
    assert run.model(2)(torch.zeros(1, 2)).shape == (1, 3)


class Endless:
    def __getitem__(self, index: int) -> Any:
        return torch.ones(2), 0


GOOD = [(torch.ones(2), 0), (torch.ones(2), 1)]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Listed(GOOD, 5), "dataset of client 2 has 5 examples, but number 2 cannot be read as .input, label.: IndexE"),
        (Listed([]), "dataset of client 2 has no examples"),
        (Endless(), r"dataset of client 2 has no length \(TypeError\)"),
        (Listed([torch.ones(3)]), r"has 1 examples, but number 0 cannot be read as \(input, label\): ValueError"),
        (Listed([("word", 0)]), "number 0 cannot be read"),
        (Listed([*GOOD, (torch.ones(3), 0)]), r"Example 2 of client 2 is float32 \[3\], but the first one is float32 "),
        (Listed([(torch.ones(2), 0.5)]), "Example 0 of client 2 has the label 0.5: labels must be whole numbers"),
        (Listed([(torch.ones(2), [0, 1])]), r"Example 0 of client 2 has the label \[0, 1\]"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(ffl.UserError, match=message):
        ffl.from_datasets([Listed(GOOD), dataset])


def test_as_many_tests_and_names_as_datasets_are_needed() -> None:
    with pytest.raises(ffl.UserError, match="There are 2 datasets but 1 test datasets"):
        ffl.from_datasets([WHOLE, WHOLE], test=[TEST])
    with pytest.raises(ffl.UserError, match="There are 1 datasets but 2 names"):
        ffl.from_datasets([WHOLE], names=["a", "b"])
    with pytest.raises(ffl.UserError, match="The test dataset of client 1 has no examples"):
        ffl.from_datasets([WHOLE], test=Listed([]))
