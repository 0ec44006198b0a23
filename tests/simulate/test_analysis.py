import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.analysis import analyse, trace
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, tiny_federation, write_folder


def test_trace_of_factors_set_by_hand() -> None:
    federation = tiny_federation("factorized-fl", options={"sparsity": 0.1})
    federation.clients.trained[:3] = True
    names = {kind: [n for n, r in federation.roles.items() if r.kind == kind and not r.head] for kind in ("u", "v")}
    u, v = (federation.clients.state.common[names[kind][-1]].flatten(1) for kind in ("u", "v"))
    u.copy_(torch.ones_like(u))
    v.zero_()
    v[0, 0], v[1, 0], v[2, 1] = 1.0, -2.0, 3.0
    first = next(name for name, role in federation.roles.items() if role.kind == "mu")
    mu = federation.clients.state.common[first].flatten(1)
    mu.copy_(torch.full_like(mu, 0.05))  # below the threshold: counts as zero
    mu[0, : mu.shape[1] // 2] = -0.1
    found = trace(federation)
    assert found["cosine.u"][:3, :3].allclose(torch.ones(3, 3).double())
    assert found["cosine.v"][:3, :3].tolist() == [[1, -1, 0], [-1, 1, 0], [0, 0, 1]]
    assert found["cosine.v"][3].isnan().all()  # has not trained
    assert found["cosine.v"][:, 3].isnan().all()
    assert {tensor.dtype for tensor in found.values()} == {torch.float64}
    assert found["mu"].shape == (4, sum(role.kind == "mu" for role in federation.roles.values()))
    assert found["mu"][:, 0].tolist() == [(mu.shape[1] // 2) / mu.shape[1], 0, 0, 0]


def test_cosines_are_more_precise_than_float32() -> None:
    federation = tiny_federation("factorized-fl")
    federation.clients.trained[:] = True
    name = [n for n, role in federation.roles.items() if role.kind == "u" and not role.head][-1]
    u = federation.clients.state.common[name].flatten(1)
    u.copy_(torch.ones_like(u))
    u[1, 0], u[2, 0] = 1.0001, 1.0002
    cosines = trace(federation)["cosine.u"]
    assert 1 > cosines[0, 1] > cosines[0, 2] > 1 - 1e-7
    assert len(set(cosines[0, 1:3].float().tolist())) == 1


@pytest.mark.parametrize("method", ["stand-alone", "fedavg", "pfedpara"])
def test_methods_without_factors_leave_no_trace(method: str) -> None:
    assert trace(tiny_federation(method)) == {}


@pytest.mark.parametrize("method", METHODS)
def test_confusion_matrices_agree_with_the_reported_accuracy(method: str) -> None:
    """Per-FedAvg tests an adapted model, Factorized-FL a pruned one: the matrices are those of the tested model."""
    federation = tiny_federation(method, rounds=2)
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    found = analyse(federation)["confusion"]
    for record, counts in zip(records, found, strict=True):
        classes = len(federation.scenario.clients[record["client"]].classes)
        assert (len(counts), len(counts[0])) == (classes, classes)
        assert sum(counts[c][c] for c in range(classes)) == record["correct"]
        assert sum(map(sum, counts)) == record["total"]


def test_rows_of_confusion_matrices_are_true_classes_in_the_clients_own_order() -> None:
    federation = tiny_federation("stand-alone", rounds=1)
    run_round(federation, 1)
    for k, counts in enumerate(analyse(federation)["confusion"]):
        client = federation.scenario.clients[k]
        own = client.labelling[federation.scenario.labels[client.test]]
        assert [sum(row) for row in counts] == torch.bincount(own, minlength=len(client.classes)).tolist()


def test_a_client_that_never_trained_has_no_confusion_matrix() -> None:
    federation = tiny_federation(fraction=0.25, rounds=1)
    run_round(federation, 1)
    assert sum(counts is not None for counts in analyse(federation)["confusion"]) == 1


def test_a_run_leaves_traces_and_an_analysis(tmp_path: Path) -> None:
    run_federation(tiny_config(rounds=2), tmp_path / "run", data=write_folder(tmp_path / "images"))
    traces = sorted(path.name for path in (tmp_path / "run" / "traces").iterdir())
    assert traces == ["round-0001.safetensors", "round-0002.safetensors"]
    found = safetensors.torch.load_file(tmp_path / "run" / "traces" / traces[0])
    mixing = safetensors.torch.load_file(tmp_path / "run" / "mixing" / "round-0002.safetensors")
    # In round 2 the server matches by vectors that the clients sent after round 1.
    assert torch.allclose(found["cosine.v"].double(), mixing["similarity"], atol=1e-6)
    analysis = json.loads((tmp_path / "run" / "analysis.json").read_text())
    assert len(analysis["mu_layers"]) == found["mu"].shape[1]
    directory = RunDirectory(tmp_path / "run")
    assert list(directory.traces()) == [1, 2]
    assert torch.equal(directory.traces()[1]["mu"], found["mu"])


def test_sizes_of_the_factors_are_those_of_each_clients_layers() -> None:
    federation = tiny_federation()
    run_round(federation, 1)
    sizes = analyse(federation)["sizes"]
    for k in range(4):
        model = federation.clients.state.client(k)
        for kind, counts in sizes.items():
            names = [name for name, role in federation.roles.items() if role.kind == kind]
            assert counts[k] == [model[name].numel() for name in names]
    # The classifier of 3 or of 5 classes comes last: u has an entry per feature, v one per class.
    assert [row[-1] for row in sizes["v"]] == [3, 3, 5, 5]
    assert [row[-1] for row in sizes["mu"]] == [n * row[-1] for n, row in zip((3, 3, 5, 5), sizes["u"], strict=True)]


def test_a_dense_model_has_no_sizes_of_factors() -> None:
    assert analyse(tiny_federation("fedavg"))["sizes"] == {}


def test_bytes_by_role_and_the_header_add_up_to_the_payload() -> None:
    federation = tiny_federation("factorized-fl")
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    numbers = dict.fromkeys(("u", "norm"), 0)
    for name in federation.shared:
        numbers[federation.roles[name].kind] += federation.clients.state.common[name][0].numel()
    for record in records:
        vector = federation.method.fingerprint(federation.clients.state.client(record["client"]), federation.roles)
        assert vector is not None
        assert record["down_roles"] == {kind: 4 * count for kind, count in numbers.items()}
        assert record["up_roles"] == record["down_roles"] | {"fingerprint": 4 * vector.numel()}
        assert 0 < record["up_bytes"] - sum(record["up_roles"].values()) < 100 * (len(federation.shared) + 2)


def test_a_fingerprint_of_images_is_no_statistic_in_the_ledger() -> None:
    federation = tiny_federation("factorized-peers")
    run_round(federation, 1)
    records, _ = run_round(federation, 2)
    for record in records:
        assert "stat" not in record["up_roles"]
        assert record["up_roles"]["fingerprint"] > 0
