from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import functional_call

from factorized_fl.core.errors import UserError
from factorized_fl.core.roles import RUNNING
from factorized_fl.methods.fedfomo import FedFOMO
from factorized_fl.methods.first_order import first_order_weights
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import download, run_round
from tests.methods.hand import each, no_loss, server
from tests.tiny import tiny_config, tiny_federation, tiny_scenario

ALL = FedFOMO(models=3, explore=0.0)
STACK = [[1.0], [2.0], [4.0]]
TARGET = [2.0, 4.0, -1.0]


def squared(client: int, tensors: dict[str, torch.Tensor]) -> float:
    return float((tensors["w"] - TARGET[client]).square())


def test_first_order_weights_by_hand() -> None:
    """All begin at 0. The target of 0 is 2: (4-1)/1, (4-0)/2, (4-4)/4; of 1 it is 4: (16-9)/1, (16-4)/2, 16/4."""
    mixing = ALL.mix(server(STACK, loss=squared))
    assert mixing.matrix[0].tolist() == pytest.approx([3 / 5, 2 / 5, 0], rel=1e-4)
    assert mixing.matrix[1].tolist() == pytest.approx([7 / 17, 6 / 17, 4 / 17], rel=1e-4)
    assert mixing.revert is not None
    assert mixing.revert.tolist() == [False, False, True]


def test_preferences_begin_at_a_tenth_for_the_client_itself_and_add_up() -> None:
    """The target of client 2 is -1, so all models are worse: (1-4)/1, (1-9)/2, (1-25)/4, divided by |-13|."""
    once = ALL.mix(server(STACK, loss=squared))
    expected = torch.tensor(
        [[0.1 + 3 / 5, 2 / 5, 0], [7 / 17, 0.1 + 6 / 17, 4 / 17], [-3 / 13, -4 / 13, 0.1 - 6 / 13]],
        dtype=torch.float64,
    )
    assert torch.allclose(once.state["preference"], expected, rtol=1e-4)
    twice = ALL.mix(server(STACK, loss=squared, state=once.state))
    own = 0.1 * torch.eye(3, dtype=torch.float64)
    assert torch.allclose(twice.state["preference"], 2 * expected - own, rtol=1e-4)
    assert torch.allclose(once.state["preference"], expected, rtol=1e-4)  # the old state is not overwritten


def test_negative_weights_are_not_in_the_row_but_in_the_preferences() -> None:
    """Client 0 begins at 0, its target is 1.5: (2.25-0.25)/1 = 2, (2.25-0.25)/2 = 1, (2.25-6.25)/4 = -1; |sum| is 2."""
    mixing = ALL.mix(server(STACK, clients=[0], loss=lambda client, t: float((t["w"] - 1.5).square())))
    assert mixing.matrix[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0], rel=1e-4)
    assert mixing.state["preference"][0].tolist() == pytest.approx([1.1, 0.5, -0.5], rel=1e-4)


def test_distance_is_euclidean_over_all_tensors_and_from_the_clients_own_start() -> None:
    stack = {"a": [[0.0], [4.0]], "b": [[0.0], [6.0]]}
    start = {"a": [[1.0], [9.0]], "b": [[2.0], [9.0]]}
    weights = first_order_weights(server(stack, start=start, loss=lambda client, t: float(10 - t["a"].sum())), 0, [1])
    assert weights is not None
    assert weights.tolist() == pytest.approx([(9 - 6) / (5 + 1e-5)], rel=1e-9)  # 3-4-5


def test_a_model_that_did_not_move_has_no_weight() -> None:
    mixing = ALL.mix(server([[0.0], [0.0], [1.0]], clients=[0], loss=lambda client, t: float(5 - t["w"])))
    assert mixing.matrix[0].tolist() == pytest.approx([0, 0, 1])
    assert mixing.state["preference"][0].tolist() == pytest.approx([0.1, 0, 1], rel=1e-4)


def test_preferences_stay_the_same_if_no_model_moved() -> None:
    mixing = ALL.mix(server([[0.0], [0.0], [0.0]], loss=squared))
    assert torch.equal(mixing.state["preference"], 0.1 * torch.eye(3, dtype=torch.float64))
    assert mixing.revert is not None
    assert mixing.revert.all()


def test_a_client_that_no_candidate_helps_can_keep_its_current_model() -> None:
    """Client 2, as above: all candidates are worse than its start, and it keeps its current value 4."""
    usual, keeping = (
        FedFOMO(models=3, explore=0.0, fallback=fallback).mix(server(STACK, loss=squared))
        for fallback in ("start", "current")
    )
    assert keeping.revert is not None
    assert keeping.revert.tolist() == [False, False, False]
    assert keeping.matrix[2].tolist() == [0, 0, 1]
    assert torch.equal(keeping.matrix, usual.matrix)
    assert torch.equal(keeping.state["preference"], usual.state["preference"])
    assert keeping.downloads is not None
    assert keeping.downloads.tolist() == [2, 2, 2]


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
def test_a_client_without_a_finite_baseline_loss_keeps_its_current_model(unknown: float) -> None:
    """All begin at 0; the target of client 0 is 2, but the loss of its start is unknown."""
    usual = ALL.mix(server(STACK, loss=squared))
    mixing = ALL.mix(
        server(STACK, loss=lambda client, t: unknown if client == 0 and not t["w"] else squared(client, t))
    )
    assert mixing.revert is not None
    assert mixing.revert.tolist() == [False, False, True]
    assert mixing.matrix[0].tolist() == [1, 0, 0]
    assert mixing.state["preference"][0].tolist() == [0.1, 0, 0]
    assert torch.equal(mixing.matrix[1:], usual.matrix[1:])


def test_only_participants_try_models_and_update_preferences() -> None:
    mixing = ALL.mix(server(STACK, clients=[1], loss=squared))
    assert mixing.matrix[[0, 2]].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert mixing.state["preference"][[0, 2]].tolist() == [[0.1, 0, 0], [0, 0, 0.1]]
    assert mixing.downloads is not None
    assert mixing.downloads.tolist() == [0, 2, 0]
    assert mixing.revert is not None
    assert not mixing.revert.any()


def many(**settings):
    return server(torch.zeros(6, 1), loss=no_loss, **settings)


def test_greedy_choice_takes_the_most_preferred() -> None:
    preference = np.array([0.1, 0.5, -0.2, 0.9, 0.3, 0.0])
    assert FedFOMO(models=4, explore=0.0).candidates(preference, 0, many()) == [0, 3, 1, 4]
    assert FedFOMO(models=1, explore=0.0).candidates(preference, 0, many()) == [0]
    assert FedFOMO(models=10, explore=0.0).candidates(preference, 2, many()) == [2, 3, 1, 4, 0, 5]


def test_exploration_is_random_and_seeded() -> None:
    preference = np.array([0.1, 0.5, -0.2, 0.9, 0.3, 0.0])
    method = FedFOMO(models=3, explore=1.0)
    found = [tuple(method.candidates(preference, 0, many(round_number=1, seed=seed))) for seed in range(30)]
    assert found == [tuple(method.candidates(preference, 0, many(round_number=1, seed=seed))) for seed in range(30)]
    assert all(len(set(tried)) == 3 and tried[0] == 0 for tried in found)
    assert {k for tried in found for k in tried} == set(range(6))


def test_exploration_falls_by_a_twentieth_each_round() -> None:
    """0.3 in round 1, 0.05 in round 6 and none from round 7 on: then every draw is greedy."""
    preference = np.array([0.1, 0.5, -0.2, 0.9, 0.3, 0.0])
    method = FedFOMO(models=2, explore=0.3)

    def surprises(round_number: int) -> int:
        return sum(
            method.candidates(preference, 0, many(round_number=round_number, seed=s)) != [0, 3] for s in range(400)
        )

    assert surprises(7) == 0
    assert surprises(50) == 0
    # One random draw in five is the most preferred client.
    assert surprises(1) / 400 == pytest.approx(0.8 * 0.3, abs=0.07)
    assert 0 < surprises(6) / 400 < 0.1


def test_ties_are_broken_at_random() -> None:
    method = FedFOMO(models=2, explore=0.0)
    assert {method.candidates(np.zeros(6), 0, many(seed=seed))[1] for seed in range(60)} == {1, 2, 3, 4, 5}


def test_clients_that_never_participated_are_not_tried() -> None:
    received = [False, True, False, True, True, False]
    method = FedFOMO(models=10, explore=0.0)
    assert sorted(method.candidates(np.zeros(6), 0, many(received=received))) == [1, 3, 4]
    tried = method.candidates(np.zeros(6), 3, many(received=received))
    assert tried[0] == 3
    assert sorted(tried) == [1, 3, 4]


def test_a_new_client_takes_a_model_that_helps_or_keeps_its_own() -> None:
    """Clients 0 and 2 are new and have their initial value 0; the 2 of client 1 helps only client 0."""
    mixing = ALL.mix(server([[0.0], [2.0], [0.0]], received=[False, True, False], loss=squared))
    assert mixing.matrix.tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert mixing.revert is not None
    assert mixing.revert.tolist() == [False, False, False]
    assert mixing.downloads is not None
    assert mixing.downloads.tolist() == [1, 0, 1]
    assert mixing.state["preference"][0].tolist() == pytest.approx([0.1, 1, 0], rel=1e-4)


@pytest.mark.parametrize("fallback", ["start", "current"])
def test_a_client_that_no_candidate_helps_reverts_to_its_start_or_keeps_its_model(
    fallback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = tiny_federation("fedfomo", options={"models": 4, "fallback": fallback})
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.tensors.items()}

    def loss(client, tensors):
        """Zero for one model: for client 0 its start, for all others the model of client 3."""
        name = "conv1.conv.weight"
        best = federation.clients.start.common[name][0] if client == 0 else before[f"state/all/{name}"][3]
        return float((tensors[name] - best).norm() > 1e-9)

    monkeypatch.setattr(federation.engine, "validation_losses", lambda k, own, stacked: each(loss)(k, stacked))
    mixing = download(federation, 2, range(4), range(4)).mixing
    assert mixing is not None
    assert mixing.revert is not None
    assert mixing.revert.tolist() == [fallback == "start", False, False, False]
    kept = "start/all" if fallback == "start" else "state/all"
    for name in federation.shared:
        now = federation.clients.state.common[name]
        assert torch.equal(now[0], before[f"{kept}/{name}"][0])
        assert torch.equal(now[1:], before[f"state/all/{name}"][[3, 3, 3]])
    assert not torch.equal(before["start/all/conv1.conv.weight"][0], before["state/all/conv1.conv.weight"][0])


def test_a_fifth_of_the_training_images_is_held_out_and_never_trained_on() -> None:
    federation = tiny_federation("fedfomo", epochs=6, batch_size=4)
    plain = tiny_scenario(tiny_config("fedfomo"))
    pool = federation.scenario.images
    for k, (client, whole) in enumerate(zip(federation.scenario.clients, plain.clients, strict=True)):
        assert len(client.holdout) == round(0.2 * len(whole.train))
        assert sorted([*client.train.tolist(), *client.holdout.tolist()]) == sorted(whole.train.tolist())
        assert not set(client.train.tolist()) & set(client.holdout.tolist())
        batches = [batch.images for batch in federation.engine.batches(1, k)]
        seen = {image.mul(0.25).add(0.5).mul(255).round().byte().numpy().tobytes() for image in torch.cat(batches)}
        assert seen == {pool[position].numpy().tobytes() for position in client.train}
        assert not seen & {pool[position].numpy().tobytes() for position in client.holdout}
    assert torch.equal(federation.scenario.sizes, torch.tensor([14, 14, 19, 19], dtype=torch.float64))


def test_all_training_images_are_used_if_models_are_tried_on_the_validation_split() -> None:
    federation = tiny_federation("fedfomo", options={"tried_on": "validation"})
    plain = tiny_scenario(tiny_config("fedfomo"))
    for client, whole in zip(federation.scenario.clients, plain.clients, strict=True):
        assert torch.equal(client.train, whole.train)
        assert torch.equal(client.holdout, whole.validation)
        assert torch.equal(client.test, whole.test)
        assert not {*client.holdout.tolist()} & {*client.train.tolist(), *client.test.tolist()}
    assert [len(client.holdout) for client in federation.scenario.clients] == [12, 12, 16, 16]


def test_the_images_that_select_models_cannot_score_them() -> None:
    with pytest.raises(
        UserError, match="tried_on=validation conflicts with score=validation: the same images would select and score"
    ):
        tiny_federation("fedfomo", options={"tried_on": "validation"}, score="validation")
    tiny_federation("fedfomo", options={"tried_on": "holdout"}, score="validation")  # selected on other images


def test_a_client_without_validation_images_is_refused_if_models_are_tried_on_them() -> None:
    config = tiny_config("fedfomo", options={"tried_on": "validation"})
    scenario = tiny_scenario(config)
    last = replace(scenario.clients[3], validation=torch.empty(0, dtype=torch.int64))
    scenario = replace(scenario, clients=(*scenario.clients[:3], last))
    with pytest.raises(UserError, match="client 4 has no validation images"):
        build_federation(config, scenario, torch.device("cpu"))


@pytest.mark.parametrize("tried_on", ["holdout", "validation"])
def test_models_are_tried_in_evaluation_mode_on_images_kept_out_of_training(tried_on: str) -> None:
    federation = tiny_federation("fedfomo", options={"tried_on": tried_on})
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.tensors.items()}
    client = federation.scenario.clients[1]
    tensors = federation.clients.state.client(1)
    other = federation.clients.state.client(0)
    candidates = {name: torch.stack([tensors[name], other[name]]) for name in federation.shared}
    found = federation.engine.validation_losses(1, tensors, candidates)
    tried = getattr(client, tried_on)
    images = (federation.scenario.images[tried].float() / 255 - 0.5) / 0.25
    labels = client.labelling[federation.scenario.labels[tried]]
    with torch.no_grad():
        for loss, body in zip(found, (tensors, other), strict=True):
            model = tensors | {name: body[name] for name in federation.shared}
            logits = functional_call(federation.engine.models[3].eval(), model, (images,))
            assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-6)
    assert found[0] != found[1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.tensors.items())


def test_bodies_of_others_are_tried_under_the_clients_own_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("fedfomo", options={"models": 4})
    run_round(federation, 1)
    heads = [name for name, role in federation.roles.items() if role.head]
    local = [name for name in federation.roles if name not in federation.shared]
    assert heads
    assert set(heads) < set(local)
    snapshot = [{n: t.clone() for n, t in federation.clients.state.client(k).items()} for k in range(4)]
    tried: dict[int, set[int]] = {}

    def losses(client, own, candidates):
        assert all(torch.equal(own[name], snapshot[client][name]) for name in local)
        assert set(candidates) == set(federation.shared)
        assert any(name.endswith("running_mean") for name in candidates)
        (count,) = {len(stacked) for stacked in candidates.values()}
        for m in range(count):
            body = [k for k in range(4) if all(torch.equal(candidates[n][m], snapshot[k][n]) for n in candidates)]
            tried.setdefault(client, set()).update(body)
        return [1.0] * count

    monkeypatch.setattr(federation.engine, "validation_losses", losses)
    download(federation, 2, range(4), range(4))
    assert tried == {k: {0, 1, 2, 3} for k in range(4)}


def test_a_model_that_diverged_has_no_weight_and_leaves_preferences_finite() -> None:
    federation = tiny_federation("fedfomo")
    run_round(federation, 1)
    for name in federation.shared:
        federation.clients.state.common[name][3] = float("nan")
    for round_number in (2, 8):
        mixing = download(federation, round_number, [0, 1, 2], [0, 1, 2]).mixing
        assert mixing is not None
        assert mixing.matrix[:3, 3].tolist() == [0, 0, 0]
        assert mixing.state["preference"].isfinite().all()


# -- the statistics under which models are tried


def test_running_statistics_travel_only_with_statistics_of_the_sender_and_are_counted() -> None:
    bytes_up = {}
    for statistics in ("sender", "own", "recalibrated"):
        federation = tiny_federation("fedfomo", options={"statistics": statistics})
        running = {name for name in federation.roles if name.endswith(RUNNING) and not federation.roles[name].head}
        assert running
        assert running & federation.shared == (running if statistics == "sender" else set())
        assert not any(name.endswith("tracked") for name in federation.shared)
        (record, *_), _ = run_round(federation, 1)
        bytes_up[statistics] = record["up_roles"]
        numbers = sum(federation.clients.state.common[name][0].numel() for name in running)
    assert bytes_up["sender"] == {**bytes_up["own"], "stat": 4 * numbers}
    assert bytes_up["recalibrated"] == bytes_up["own"]


def test_statistics_do_not_count_in_the_distance_of_models() -> None:
    stack = {"w": [[1.0], [2.0]], "norm.running_mean": [[0.0], [100.0]], "norm.running_var": [[1.0], [50.0]]}
    start = {"w": [[0.0], [0.0]], "norm.running_mean": [[0.0], [0.0]], "norm.running_var": [[1.0], [1.0]]}
    weights = first_order_weights(server(stack, start=start, loss=lambda client, t: float(10 - t["w"])), 0, [1])
    assert weights is not None
    assert weights.tolist() == pytest.approx([1.0], rel=1e-4)


def test_recalibrated_candidates_are_tried_with_statistics_of_the_clients_training_images() -> None:
    """The losses of the three options differ; recalibrated ones do not depend on the statistics that a model has."""
    losses = {}
    for statistics in ("own", "recalibrated"):
        federation = tiny_federation("fedfomo", options={"statistics": statistics})
        run_round(federation, 1)
        own = {name: tensor.clone() for name, tensor in federation.clients.state.client(0).items()}
        candidates = {name: federation.clients.state.common[name].clone() for name in federation.shared}
        before = federation.engine.validation_losses(0, own, candidates)
        for name in (name for name in own if name.endswith(RUNNING)):
            own[name] += 1.0
        losses[statistics] = before, federation.engine.validation_losses(0, own, candidates)
    assert losses["own"][0] != losses["own"][1]
    assert losses["recalibrated"][0] == losses["recalibrated"][1] != losses["own"][0]
