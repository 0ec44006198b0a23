"""Membership inference on runs whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import factorized_fl as ffl
from factorized_fl.audit.membership import (
    COORDINATOR,
    MODEL,
    PEER,
    draw_members,
    infer_membership,
    make_pools,
    membership_scores,
    shadow_source,
)
from factorized_fl.audit.observe import Source, observe
from factorized_fl.core.errors import UserError
from factorized_fl.simulate.own import own_config, own_run_scenario


def network(example, outputs):
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, outputs))


def source(method="fedavg", rounds=2, **settings):
    """Three clients with random labels: a model can only be right on images that it has seen."""
    rng = np.random.default_rng(0)

    def part():
        return rng.normal(size=(24, 20)).astype(np.float32), rng.integers(4, size=24)

    clients = [ffl.ClientData(*part(), test=part(), name=f"site {k}", classes=list("abcd")) for k in range(3)]
    table = {
        "rounds": rounds,
        "epochs": 30,
        "batch_size": 8,
        "lr": 0.1,
        "model": "tests.audit.test_membership:network",
        **settings,
    }
    config = own_config(clients, method, table)
    return Source(config, own_run_scenario(clients, config), network)


def test_likelihood_ratio_by_hand():
    # One image, one statistic: members at 1 and 3, others at -1 and -3. The variance about the means 2 and -2 is 1.
    shadows = np.array([[[1.0]], [[3.0]], [[-1.0]], [[-3.0]]])
    members = torch.tensor([[True], [True], [False], [False]])
    ratio = membership_scores(np.array([[1.0]]), shadows, members)
    assert ratio[0] == pytest.approx(((1 + 2) ** 2 - (1 - 2) ** 2) / 2 / 1.001, rel=1e-6)


def test_pools_are_disjoint_and_shadow_runs_have_as_many_images():
    of = source()
    pools = make_pools(of.scenario, 1)
    positions = torch.cat(pools.images)
    assert len(positions.unique()) == len(positions) == 3 * 48
    members = draw_members(pools, 1, 5)
    assert [int(chosen.sum()) for chosen in members] == [24, 24, 24]
    drawn = shadow_source(of, pools, members).scenario
    for client, images, chosen in zip(drawn.clients, pools.images, members, strict=True):
        assert client.train.tolist() == sorted(images[chosen].tolist())
    assert not torch.equal(members[0], draw_members(pools, 1, 6)[0])


def test_members_of_a_model_that_learned_by_heart_are_found():
    of = source()
    pools = make_pools(of.scenario, 1)
    found = {result.view: result.auc for result in infer_membership(of, observe(of), pools, shadows=6)}
    assert found[MODEL].low > 0.8
    assert found[COORDINATOR].low > 0.5
    assert set(found) == {MODEL, COORDINATOR, PEER}


def test_nothing_is_found_where_nothing_was_trained():
    of = source(lr=1e-9, rounds=1)
    pools = make_pools(of.scenario, 1)
    results = infer_membership(of, observe(of), pools, shadows=6)
    assert {result.view for result in results} == {MODEL, COORDINATOR}  # no download before the first update
    assert all(result.auc.low < 0.5 < result.auc.high for result in results)


def test_views_without_tensors_are_left_out():
    alone = source("stand-alone")
    pools = make_pools(alone.scenario, 1)
    assert [r.view for r in infer_membership(alone, observe(alone), pools, shadows=4)] == [MODEL]
    of = source()
    hidden = infer_membership(of, observe(of), pools, shadows=4, hides_uploads=True)
    assert COORDINATOR not in {result.view for result in hidden}
    with pytest.raises(UserError, match="shadows = 2"):
        infer_membership(of, observe(of), pools, shadows=2)


def test_what_is_observed_is_what_travelled():
    of = source(rounds=3)
    seen = observe(of)
    mean = torch.stack([seen.uploads[0][k]["0.weight"] for k in range(3)]).mean(0)
    for k in range(3):  # with equal numbers of images FedAvg sends the mean of the uploads
        torch.testing.assert_close(seen.downloads[1][k]["0.weight"], mean)
        torch.testing.assert_close(seen.before(1, k)["0.weight"], mean)
        torch.testing.assert_close(seen.final[k]["0.weight"], seen.uploads[2][k]["0.weight"])
    assert seen.downloads[0] == {}
    assert seen.weights[0] is None


def test_a_client_without_other_images_is_refused():
    of = source()
    clients = tuple(replace(client, test=client.train, validation=client.train) for client in of.scenario.clients)
    with pytest.raises(UserError, match=r"site 0 has 24 training images and 0 test images of its own"):
        make_pools(replace(of.scenario, clients=clients), 1)
