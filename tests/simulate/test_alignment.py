import warnings
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.methods import correspondence
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.simulate.alignment import dense_rows, true_labels
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import download, run_round
from factorized_fl.simulate.run import run_federation
from tests.simulate.test_run import StopIn, contents
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set


def rows_of(federation, k: int) -> torch.Tensor:
    return dense_rows(federation.engine.models)(federation.clients.state.client(k))


def options(method: str) -> dict[str, object]:
    return {"options": {"head": "dense"}} if method == "pfedpara" else {}


@pytest.mark.parametrize("method", ["fedavg", "factorized-fedavg", "pfedpara"])
def test_true_matches_give_all_clients_of_a_domain_one_row_for_each_class(method: str) -> None:
    """Clients of the two domains have 3 and 5 classes, each in an order of its own."""
    federation = tiny_federation(method, align="true", **options(method))
    before = [rows_of(federation, k) for k in range(4)]
    run_round(federation, 1)
    trained = [rows_of(federation, k) for k in range(4)]
    assert not torch.allclose(before[0], trained[0])
    download(federation, 2, range(4), range(4))
    labels = true_labels(federation.scenario, 5)
    after = [rows_of(federation, k) for k in range(4)]
    for one, two in ((0, 1), (2, 3)):
        size = len(after[one])
        order = [labels[two].tolist().index(label) for label in labels[one, :size].tolist()]
        assert torch.allclose(after[one], after[two][order], atol=1e-6)
        if method != "factorized-fedavg":  # factors are averaged as such, which is not the mean of their products
            share = federation.scenario.sizes[one] / federation.scenario.sizes[[one, two]].sum()
            mean = share * trained[one] + (1 - share) * trained[two][order]
            assert torch.allclose(after[one], mean.float(), atol=1e-6)


def test_a_run_without_any_match_trains_as_one_that_does_not_align() -> None:
    """With a dense classifier; confidence 1 is never reached."""
    plain, aligned = tiny_federation("fedavg"), tiny_federation("fedavg", align="statistics", align_confidence=1.0)
    for federation in (plain, aligned):
        for round_number in (1, 2, 3):
            run_round(federation, round_number)
    for k in range(4):
        assert torch.equal(rows_of(plain, k), rows_of(aligned, k))


@pytest.mark.parametrize("align", ["statistics", "classifier"])
def test_an_aligned_run_resumes_bit_for_bit(
    align: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        correspondence, "direction_evidence", lambda rows, owner: 30 * rows @ rows.T
    )  # so few rounds prove nothing
    config = tiny_config("factorized-peers", align=align, rounds=4, align_confidence=0.0, seed=2)
    run_federation(config, tmp_path / "a", data=images)
    with pytest.raises(KeyboardInterrupt):
        run_federation(config, tmp_path / "b", data=images, observers=[StopIn(4)])
    run_federation(config, tmp_path / "b", data=images, resume=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert RunDirectory(tmp_path / "a").summary()["matches"]["matched"] > 0


def test_the_control_of_an_aligned_run_is_that_of_the_run() -> None:
    federation = tiny_federation("fedavg", align="true", control=True)
    run_round(federation, 1)
    assert federation.clients.classes is None


def test_alignment_is_refused_where_it_has_no_effect() -> None:
    agreeing = tiny_config("fedavg", align="true", permuted=False)
    with pytest.raises(UserError, match="number their classes alike"):
        build_federation(agreeing, tiny_scenario(agreeing, (tiny_set(),)), torch.device("cpu"))
    with pytest.raises(UserError, match="no room for the 5 classes"):
        tiny_federation("fedavg", align="true", align_classes=4)
    with pytest.raises(UserError, match="leave one of them out"):
        tiny_config("fedavg", align="true", oracle="groups")
    with pytest.raises(UserError, match="align_noise"):
        tiny_config("fedavg", align="classifier", align_noise=0.1)
    with pytest.warns(UserWarning, match="factorized-fl shares no rows of a classifier"):
        tiny_federation("factorized-fl", align="true")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_federation("stand-alone", align="true")


def test_prototypes_are_the_means_over_clients_with_the_class() -> None:
    """FedProto with domains of 3 and 5 classes, each numbered differently by each client."""
    config = tiny_config("fedproto", align="true")
    agreeing = tiny_federation("fedavg").scenario  # the usual one of the tests, which FedProto gets only if told so
    federation = build_federation(config, agreeing, torch.device("cpu"))
    run_round(federation, 1)
    sent = federation.server.extra["prototypes"].clone()
    labels = true_labels(federation.scenario, 5)
    assert sent.shape[:2] == (4, 5)
    assert labels[0].tolist() != labels[1].tolist()
    mixing = federation.server.prepare(2, range(4), lambda k, tensors: []).mixing
    assert mixing is not None
    for k in range(4):
        for c, label in enumerate(labels[k].tolist()):
            same = [sent[i, j] for i in range(4) for j in range(5) if labels[i, j] == label >= 0]
            assert bool(mixing.extra["known"][k, c]) == bool(same)
            if same:
                assert len(same) == 2
                assert torch.allclose(mixing.extra["prototypes"][k, c], sum(same) / 2, atol=1e-6)
    run_round(federation, 2)
    assert federation.server.classes is not None
    assert federation.server.classes.reports[0]["class/taken"].tolist() == pytest.approx([0.5] * 3 + [0] * 2)


def test_a_class_without_a_match_has_the_prototype_of_its_client() -> None:
    config = tiny_config("fedproto", align="statistics", align_confidence=1.0)
    federation = build_federation(config, tiny_federation("fedavg").scenario, torch.device("cpu"))
    run_round(federation, 1)
    sent = federation.server.extra["prototypes"].clone()
    mixing = federation.server.prepare(2, [1, 3], lambda k, tensors: []).mixing
    assert mixing is not None
    assert torch.equal(mixing.extra["prototypes"], sent[[1, 3]])
