"""Own arrays become a scenario; bad input is one sentence that names the client."""

from typing import Any

import numpy as np
import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.clients import ClientData, own_scenario

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
TEST = (X[:2] + 100, Y[:2])


def test_own_test_data_stay_apart_and_all_other_examples_are_trained_on() -> None:
    first = ClientData(X, Y, test=TEST, validation=TEST, name="hospital 1", classes=["normal", "viral"])
    scenario = own_scenario([first, ClientData(torch.from_numpy(X), [1, 0, 2, 1, 2, 1], test=TEST)])
    one, two = scenario.clients
    assert (one.name, two.name) == ("hospital 1", "client 2")
    assert (one.classes, two.classes) == (("normal", "viral"), ("0", "1", "2"))
    assert scenario.images.dtype == torch.float32
    assert scenario.arrays
    assert torch.equal(scenario.images[one.train], torch.from_numpy(X).float())
    assert torch.equal(scenario.images[one.test], torch.from_numpy(TEST[0]).float())
    assert len(one.validation) == 2
    assert len(two.validation) == 0
    assert scenario.labels[two.train].tolist() == [1, 0, 2, 1, 2, 1]
    assert scenario.labels[two.test].tolist() == [0, 1]
    assert two.labelling.tolist() == [0, 1, 2]


def test_without_own_test_data_the_seed_splits() -> None:
    x = np.arange(20.0)[:, None]
    clients = [ClientData(x, np.arange(20) % 2, classes=2) for _ in range(2)]
    splits = [own_scenario(clients, train_share=0.8, seed=seed).clients for seed in (1, 1, 2)]
    assert [len(part) for part in (splits[0][0].train, splits[0][0].validation, splits[0][0].test)] == [16, 2, 2]
    everything = torch.cat([splits[0][1].train, splits[0][1].validation, splits[0][1].test]).sort().values
    assert everything.tolist() == list(range(20, 40))
    assert torch.equal(splits[0][0].train, splits[1][0].train)
    assert not torch.equal(splits[0][0].train, splits[2][0].train)
    assert not torch.equal(splits[0][0].train, splits[0][1].train - 20)
    given = own_scenario([ClientData(x, np.arange(20) % 2, validation=TEST_OF_ONE)]).clients[0]
    assert [len(part) for part in (given.train, given.validation, given.test)] == [16, 2, 4]


TEST_OF_ONE = (np.ones((2, 1)), [0, 1])


def test_bytes_are_images_and_whole_numbers_are_tokens() -> None:
    images = np.zeros((6, 4, 5, 7), np.uint8)
    scenario = own_scenario([ClientData(images, Y, test=(images, Y))])
    assert not scenario.arrays
    assert scenario.images.dtype == torch.uint8
    assert len(scenario.mean) == len(scenario.std) == 4
    tokens = own_scenario([ClientData(images[:, 0, 0].astype(np.int32), Y, test=(images[:, 0, 0].astype(np.int16), Y))])
    assert tokens.arrays
    assert tokens.images.dtype == torch.int64


def test_labels_agree_only_if_all_clients_name_the_same_classes() -> None:
    def agree(*classes: Any) -> bool:
        return own_scenario([ClientData(X, Y, test=TEST, classes=given) for given in classes]).labels_agree

    assert agree(["a", "b"], ["a", "b"])
    assert not agree(["a", "b"], ["b", "a"])
    assert not agree(2, 2)
    assert not agree(None, None)


def test_clients_that_are_tested_on_the_same_arrays_share_them() -> None:
    scenario = own_scenario([ClientData(X, Y, test=TEST), ClientData(X + 1, Y, test=TEST)])
    assert len(scenario.images) == 6 + 2 + 6
    assert torch.equal(scenario.clients[0].test, scenario.clients[1].test)
    assert torch.equal(scenario.images[scenario.clients[1].train], torch.from_numpy(X + 1).float())


def test_an_array_that_cannot_be_written_to_is_copied() -> None:
    x = X.copy()
    x.flags.writeable = False
    own_scenario([ClientData(x, Y, test=TEST)])


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (ClientData(X, Y[:5]), "client 2 has 6 inputs but 5 labels"),
        (ClientData(X, Y, test=(X, Y[:1])), "client 2 has 6 test inputs but 1 labels"),
        (ClientData(X, Y, test=X), r"The test data of client 2 must be a pair: write test=\(x, y\)"),
        (ClientData(X[:0], Y[:0]), "client 2 has no examples"),
        (ClientData(X, Y, test=(X[:0], Y[:0])), "client 2 has no test examples"),
        (ClientData(X[:, :1], Y, test=TEST), r"train inputs of client 2 are float32 \[1\] each, .* float32 \[2\]"),
        (ClientData(X, Y, test=(X[:, :1], Y)), r"test inputs of client 2 are float32 \[1\] each"),
        (ClientData(X.astype(int), Y, test=TEST), "train inputs of client 2 are int64"),
        (ClientData(np.where(X == 4, np.nan, X), Y), "Example 2 of the inputs of client 2 is not finite"),
        (ClientData(np.where(X == 11, 1e300, X), Y), "Example 5 of the inputs of client 2 is not finite"),
        (
            ClientData(X, Y, test=(np.full_like(X, -np.inf), Y)),
            "Example 0 of the test inputs of client 2 is not finite",
        ),
        (ClientData(X, Y - 1), "labels of client 2 run from -1 to 0"),
        (ClientData(X, Y + 1, classes=2), "labels of client 2 run from 1 to 2, but the number of classes is 2"),
        (ClientData(X, Y, test=(X, Y + 4), classes=["a", "b"]), "labels of client 2 run from 0 to 5"),
        (ClientData(X, Y * 0), "client 2 has only one class"),
        (ClientData(X, Y * 10**9), "client 2 would have 1000000001 classes, but a client can have 100000 at most"),
        (ClientData(X, Y, classes=["a", "a"]), "client 2 has two classes of the same name"),
        (ClientData(X, Y, classes="ab"), "classes of client 2 are 'ab'"),
        (ClientData(X, Y, classes=True), "classes of client 2 are True"),
        (ClientData(X, Y / 2), r"train labels of client 2 are numbers \[N, 1\], but the first client's are classes"),
        (ClientData(X, Y[:, None]), r"labels of client 2 are numbers \[N, 1\], but the first"),
        (ClientData(X[:, 0], Y), r"inputs of client 2 have shape \[6\]"),
        (ClientData(X.astype(complex), Y), "inputs of client 2 are complex128"),
        (ClientData([[1.0], [1.0, 2.0]], Y), "inputs of client 2 cannot be read as numbers"),
        (ClientData(X.astype(np.uint8), Y), r"inputs of client 2 are uint8 \[6, 2\]: give images as"),
        (ClientData(X[:1], Y[:1], test=TEST, classes=2), "client 2 has 1 training example"),
        (ClientData(X[:2], Y[:2]), "client 2 has 2 examples, too few to split with train_share = 0.8"),
        (ClientData(X, Y, test=TEST, name="client 1"), "Two clients are named 'client 1'"),
        ((X, Y), r"Client 2 is of type tuple: make it with ffl.ClientData\(x, y\)"),
    ],
)
def test_bad_data_are_refused_in_a_sentence_that_names_the_client(client: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        own_scenario([ClientData(X, Y, test=TEST), client])
    assert str(caught.value).endswith(".")


def test_a_client_prints_its_shape_instead_of_its_data() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    assert repr(ClientData(x, y, name="A", classes=["no", "yes"])) == "<ClientData A: inputs [20, 3], 2 classes>"
    assert repr(ClientData([1], y)) == "<ClientData without a name: inputs list, unnamed classes>"


def test_no_clients_are_refused() -> None:
    with pytest.raises(UserError, match="There are no clients"):
        own_scenario([])


def test_validation_examples_are_taken_from_training_where_only_a_test_set_is_given() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    client = ClientData(x, y, test=(x[:6], y[:6]))
    plain, validated = (own_scenario([client], validated=on).clients[0] for on in (False, True))
    assert [len(part) for part in (plain.train, plain.validation, plain.test)] == [20, 0, 6]
    assert [len(part) for part in (validated.train, validated.validation, validated.test)] == [16, 4, 6]
    assert sorted([*validated.train.tolist(), *validated.validation.tolist()]) == list(range(20))
