import math

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.data.scenarios import permutation
from studies.paper.heterogeneity import (
    PARTIES,
    Sets,
    default_config,
    measure_heterogeneity,
    parties,
    update_distances,
)
from tests.tiny import tiny_config, tiny_set


@pytest.fixture
def sets() -> Sets:
    return tiny_set("mnist", 4, 120), tiny_set("cifar10", 4, 80, seed=1)


def test_distances_of_unit_updates() -> None:
    before = {"w": torch.zeros(5, 2), "b": torch.zeros(5, 1)}
    now = {"w": torch.tensor([[1.0, 0], [3, 0], [0, 2], [-1, 0], [0, 0]]), "b": torch.zeros(5, 1)}
    root = round(math.sqrt(2), 4)
    assert update_distances(now, before, ["w", "b"]) == [0.0, root, 2.0, 1.0]


def test_parties_hold_what_their_names_say(sets: Sets) -> None:
    scenario = parties(sets, PARTIES, seed=1, images=24, tests=30)
    first, second, permuted, foreign = scenario.clients
    assert not set(first.train.tolist()) & set(second.train.tolist())
    assert torch.equal(second.train, permuted.train)
    assert second.labelling.tolist() == [0, 1, 2, 3]
    assert permuted.labelling.tolist() == permutation(4, 1)
    assert foreign.train.min() >= 120
    assert foreign.domain == "cifar10"
    for client in scenario.clients:
        assert len(client.train) == 24
        assert not set(client.train.tolist()) & set(client.test.tolist())
    assert not set(first.test.tolist()) & set(second.train.tolist())
    with pytest.raises(UserError, match="more than 200"):
        parties(sets, PARTIES, seed=1, images=100, tests=30)


def test_the_study_measures_distances_and_what_averaging_costs(sets: Sets) -> None:
    configs = {method: tiny_config(method, rounds=6) for method in ("stand-alone", "factorized-fl")}
    record = measure_heterogeneity(sets, 1, torch.device("cpu"), configs, images=24, tests=30)
    assert set(record["dense"]) == {"body"}
    assert set(record["factorised"]) == {"u", "v", "mu"}
    assert [len(row) for row in record["dense"]["body"]["total"]] == [3] * 6
    # Of the first epoch, all updates are since the start.
    assert record["dense"]["body"]["total"][0] == record["dense"]["body"]["epoch"][0]
    for other in PARTIES[1:]:
        assert len(record["factorised_together"][other]["u"]["total"]) == 6
        assert [len(row) for row in record["averaged"][other]["all"]] == [2, 2]
    assert record["alone"][-1][0] == record["alone"][-1][1]  # the average of one model is that model
    assert record["alone"][-1][0] > 30 / 4
    # Until the first average a pair is trained like anybody alone.
    assert record["averaged"]["CIFAR-10"]["all"][0][0] == record["alone"][0][0]


def test_the_papers_training_without_augmentation() -> None:
    config = default_config(1, "factorized-fl")
    assert (config.lr, config.batch_size, config.augment, config.epochs) == (1e-3, 256, "none", 1)
