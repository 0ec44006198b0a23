"""Every method trains every kind of network and data, and a resumed run equals an unbroken one bit for bit."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

import factorized_fl as ffl
from factorized_fl.methods import METHODS
from factorized_fl.simulate.run import Stopped
from tests.own.nets import CASES, own_clients

# Labels of numbered classes do not agree, so that classifiers stay at the clients; where they agree, they are shared.
AGREEING = {f"{case}, labels agree": (case, (3, 3, 3)) for case in CASES}
ALL_CASES = {**{case: (case, (2, 3, 2)) for case in CASES}, **AGREEING}
# Whether a classifier is shared does not depend on the network: a second one only for methods with hooks of their own.
THOROUGH = (
    *("fedavg", "per-fedavg", "fedfomo", "pfedpara", "factorized-fl", "factorized-fl-beta", "factorized-peers"),
    *("ditto", "fedala", "scaffold"),
)


def is_run(method: str, label: str) -> bool:
    if label in CASES or label == "mlp, labels agree" or METHODS[method].needs_agreeing_labels:
        return True
    return label == "vit, labels agree" and method in THOROUGH


RUNS = [(method, label) for method in sorted(METHODS) for label in ALL_CASES if is_run(method, label)]
# The combinations that cannot run, with the reason that the error gives.
REFUSED = {("fedap", label): "no BatchNorm" for label in ALL_CASES if label != "series"}
REFUSED |= {
    (name, label): "the network has none" for name in ("fedap", "fedbn") for label in ("mlp", "mlp, labels agree")
}
REFUSED |= {("fedproto", case): "number their classes differently" for case in CASES}


class StopAfter:
    """Interrupts a run after a round."""

    def __init__(self, last: int) -> None:
        self.last = last

    def started(self, federation, done) -> None: ...

    def client_done(self, round_number, client) -> None: ...

    def round_done(self, round_number, records) -> None:
        if round_number == self.last:
            raise Stopped


def settings(out: Path) -> dict:
    return {"out": out, "rounds": 2, "epochs": 1, "batch_size": 4, "lr": 0.05}


@pytest.mark.parametrize(("method", "label"), RUNS, ids=[f"{label}-{method}" for method, label in RUNS])
def test_a_resumed_run_equals_an_unbroken_one(method: str, label: str, tmp_path: Path) -> None:
    case, outputs = ALL_CASES[label]
    if case == "transformers":
        pytest.importorskip("transformers")
    model, make = CASES[case]
    clients = own_clients(make, outputs, named=len(set(outputs)) == 1)
    if (method, label) in REFUSED:
        with pytest.raises(ffl.UserError, match=REFUSED[method, label]):
            ffl.run(clients, model=model, method=method, **settings(tmp_path / "whole"))
        assert not (tmp_path / "whole" / "metrics.jsonl").exists()
        return
    whole = ffl.run(clients, model=model, method=method, **settings(tmp_path / "whole"))
    with pytest.raises(Stopped):
        ffl.run(clients, model=model, method=method, observers=[StopAfter(1)], **settings(tmp_path / "parts"))
    parts = ffl.run(clients, model=model, method=method, resume=True, **settings(tmp_path / "parts"))
    assert whole.metrics() == parts.metrics()
    assert len(whole.metrics()) == 6
    first, second = (safetensors.torch.load_file(run.checkpoint_path) for run in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (whole.path / "mixing").exists()
    plain = parts.model(2)
    client = parts.scenario.clients[1]
    scores = plain(parts.inputs(parts.scenario.images[client.test]))
    correct = int((scores.argmax(1) == parts.scenario.labels[client.test]).sum())
    assert correct == parts.summary()["clients"][1]["correct"]
