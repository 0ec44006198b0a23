"""How often clients are tested, on how many examples, and the warning about batches that leave out much."""

import warnings
from pathlib import Path

import pytest
import torch

import factorized_fl as ffl
from tests.own.nets import own_clients, table_net


def test_clients_are_tested_every_so_many_rounds_and_at_the_end(tmp_path: Path) -> None:
    settings = {"model": table_net, "method": "fedavg", "rounds": 5, "epochs": 1, "batch_size": 4}
    often = ffl.run(own_clients(), tmp_path / "often", **settings)
    seldom = ffl.run(own_clients(), tmp_path / "seldom", **settings, test_every=2)
    tested = {record["round"] for record in seldom.metrics() if record["accuracy"] is not None}
    assert tested == {2, 4, 5}
    losses = [[record["train_loss"] for record in run.metrics()] for run in (often, seldom)]
    assert losses[0] == losses[1]
    ours, theirs = seldom.summary(), often.summary()
    assert ours is not None
    assert theirs is not None
    assert ours["clients"] == theirs["clients"]
    ffl.report(tmp_path / "seldom")


def test_own_test_sets_are_limited(tmp_path: Path) -> None:
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    clients = [ffl.ClientData(x, y, test=(x[:30], y[:30]), name=name) for name in "ab"]
    run = ffl.run(clients, tmp_path, model=table_net, method="fedavg", rounds=1, batch_size=8, test_images=7)
    first, second = (client.test.tolist() for client in run.scenario.clients)
    assert (len(first), len(second)) == (7, 7)
    assert first != second
    summary = run.summary()
    assert summary is not None
    assert [client["total"] for client in summary["clients"]] == [7, 7]


def test_a_batch_that_leaves_out_much_gives_a_warning(tmp_path: Path) -> None:
    clients = [ffl.ClientData(torch.randn(15, 5), torch.arange(15) % 2, test=(torch.randn(4, 5), [0, 1, 0, 1]))]
    words = "client 1 leaves out 7 of its 15 training examples in each epoch, because .* batch_size = 8 does not suit"
    with pytest.warns(UserWarning, match=words):
        ffl.run(clients, tmp_path / "one", model=table_net, method="fedavg", rounds=1, batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ffl.run(clients, tmp_path / "two", model=table_net, method="fedavg", rounds=1, batch_size=5)
