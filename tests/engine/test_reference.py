import copy
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from factorized_fl.core.views import Trained
from factorized_fl.data.scenarios import Client, Scenario
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set


def train(federation, round_number: int = 1, clients=(0,)) -> dict[int, Trained]:
    return federation.engine.train(round_number, clients, federation.clients, lambda client: None)


@pytest.mark.parametrize("method", ["stand-alone", "factorized-fl-beta"])
def test_two_rounds_equal_a_plain_pytorch_loop(method: str) -> None:
    """The same batches through an ordinary module, autograd's backward and torch.optim.SGD."""
    # At ten times this rate, differences in the last bit grow beyond the tolerance on some processors.
    federation = tiny_federation(method, epochs=2, weight_decay=1e-2, lr=0.005)
    engine, config = federation.engine, federation.config
    model = copy.deepcopy(engine.models[3])
    model.load_state_dict(federation.clients.state.client(0))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    sparsity = config.options.get("sparsity", 0.0)
    for round_number in (1, 2):
        losses = []
        model.train()
        for batch in engine.batches(round_number, 0):
            loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
            losses.append(loss.item())
            mu = sum(p.abs().sum() for n, p in model.named_parameters() if n.endswith("weight.original"))
            optimiser.zero_grad()
            (loss + sparsity * mu).backward()
            optimiser.step()
        result = train(federation, round_number)[0]
        assert result.steps == len(losses)
        assert result.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    for name, tensor in model.state_dict().items():
        assert torch.allclose(tensor, federation.clients.state.client(0)[name], rtol=1e-5, atol=1e-6), name


def test_epochs_shuffle_drop_the_last_incomplete_batch_and_repeat_by_seed() -> None:
    federation = tiny_federation("stand-alone", batch_size=8, epochs=2)
    own = len(federation.scenario.clients[0].train)
    assert own == 18
    batches = list(federation.engine.batches(1, 0))
    assert [len(batch.labels) for batch in batches] == [8, 8, 8, 8]
    again = list(federation.engine.batches(1, 0))
    assert all(torch.equal(a.images, b.images) for a, b in zip(batches, again, strict=True))
    assert not torch.equal(batches[0].images, batches[2].images)
    assert not torch.equal(batches[0].images, next(federation.engine.batches(2, 0)).images)


def test_less_than_one_batch_makes_one_smaller_step_per_epoch() -> None:
    federation = tiny_federation("stand-alone", batch_size=64, epochs=3)
    assert [len(batch.labels) for batch in federation.engine.batches(1, 0)] == [18, 18, 18]
    assert train(federation)[0].steps == 3


def test_labels_follow_the_clients_own_labelling() -> None:
    federation = tiny_federation("stand-alone", batch_size=18)
    client = federation.scenario.clients[1]
    batch = next(federation.engine.batches(1, 1))
    rows = (batch.images * 0.25 + 0.5)[:, 0].mean(2).argmax(1)  # class c is a bright row c
    assert torch.equal(batch.labels, client.labelling[rows])


def test_evaluation_scores_every_test_image_under_own_labels() -> None:
    federation = tiny_federation("factorized-fl", epochs=20)
    train(federation)
    result = federation.engine.evaluate(1, [0], federation.clients)[0]
    client, scenario = federation.scenario.clients[0], federation.scenario
    model = federation.engine.models[3].eval()
    images = (scenario.images[client.test].float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        logits = functional_call(model, federation.clients.state.client(0), (images,))
    right = logits.argmax(1) == client.labelling[scenario.labels[client.test]]
    assert (result.correct, result.total) == (int(right.sum()), len(client.test))
    assert result.correct > 0.5 * result.total


def test_evaluation_changes_nothing() -> None:
    federation = tiny_federation("factorized-fl")
    before = {name: tensor.clone() for name, tensor in federation.tensors.items()}
    federation.engine.evaluate(1, range(4), federation.clients)
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.tensors.items())


def test_training_changes_only_the_given_clients() -> None:
    federation = tiny_federation("fedavg")
    before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    train(federation, clients=(2,))
    for name, tensor in federation.clients.state.common.items():
        assert torch.equal(tensor[[0, 1, 3]], before[name][[0, 1, 3]])
    assert any(not torch.equal(t[2], before[name][2]) for name, t in federation.clients.state.common.items())


def test_momentum_is_kept_across_rounds() -> None:
    """With momentum reset between two rounds the second gives other parameters."""
    kept, forgotten = (tiny_federation("stand-alone") for _ in range(2))
    for federation in (kept, forgotten):
        train(federation)
    assert all(torch.equal(t, forgotten.clients.state.common[name]) for name, t in kept.clients.state.common.items())
    for tensor in forgotten.clients.momentum.client(0).values():
        tensor.zero_()
    for federation in (kept, forgotten):
        train(federation, 2)
    first, second = kept.clients.state.client(0), forgotten.clients.state.client(0)
    assert all(not torch.equal(first[name], second[name]) for name in kept.clients.momentum.client(0))


def test_bodies_start_equal_whatever_the_number_of_classes() -> None:
    for method in ("stand-alone", "factorized-fl"):
        federation = tiny_federation(method)
        body = [name for name, role in federation.roles.items() if not role.head]
        first, last = federation.clients.state.client(0), federation.clients.state.client(3)
        assert all(torch.equal(first[name], last[name]) for name in body)


def test_augmentation_reaches_the_batches() -> None:
    plain = tiny_config("stand-alone")
    augmented = tiny_config("stand-alone", augment="paper")
    batches = []
    for config in (plain, augmented):
        federation = build_federation(config, tiny_scenario(config, (tiny_set(),)), torch.device("cpu"))
        batches.append(next(federation.engine.batches(1, 0)))
    assert torch.equal(batches[0].labels, batches[1].labels)
    assert not torch.allclose(batches[0].images, batches[1].images)


def test_images_are_in_memory_once() -> None:
    federation = tiny_federation("fedavg")
    assert isinstance(federation.scenario, Scenario)
    assert isinstance(federation.scenario.clients[0], Client)
    assert federation.engine.images.data_ptr() == federation.scenario.images.data_ptr()


def test_recalibration_changes_only_statistics_and_uses_images_without_augmentation() -> None:
    """18 training images in batches of 8: the mean of the moments of two batches, with mu pruned."""
    options = {"sparsity": 0.01}
    recalibrated = tiny_federation("factorized-fl-beta", options=options, augment="paper", channels=1, recalibrate=True)
    for round_number in (1, 2):
        train(recalibrated, round_number, (0, 1))
    own = {name: tensor.clone() for name, tensor in recalibrated.clients.state.client(0).items()}
    model = copy.deepcopy(recalibrated.engine.models[3]).eval()
    model.load_state_dict(own)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    inputs = []
    for norm in norms:
        norm.train()
        norm.register_forward_hook(lambda module, given, out: inputs.append(given[0]))
    scenario = recalibrated.scenario
    batches = recalibrated.engine.work.plain_batches(0)
    assert batches.shape == (2, 8)
    assert set(batches.flatten().tolist()) < set(scenario.clients[0].train.tolist())
    with torch.no_grad():
        for some in batches:
            model((scenario.images[some].float() / 255 - 0.5) / 0.25)
    tensors = recalibrated.engine.tested(2, 0, recalibrated.clients)
    assert all(torch.equal(tensor, own[name]) for name, tensor in recalibrated.clients.state.client(0).items())
    changed = [name for name, tensor in tensors.items() if not torch.equal(tensor, own[name])]
    assert sorted(changed) == sorted(name for name in recalibrated.roles if name.endswith(("_mean", "_var")))
    for index, name in enumerate(name for name in changed if name.endswith("_mean")):
        both = [inputs[index], inputs[index + len(norms)]]
        mean = torch.stack([x.mean((0, 2, 3)) for x in both]).mean(0)
        variance = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in both]).mean(0)
        assert torch.allclose(tensors[name], mean, atol=1e-6)
        assert torch.allclose(tensors[name.replace("_mean", "_var")], variance, rtol=1e-4)


def test_images_sorted_by_class_are_shuffled_for_recalibration() -> None:
    """A folder of class folders is read in this order."""
    pictures = tiny_set("bars", 3, 300)
    order = pictures.labels.argsort(stable=True)
    ordered = replace(pictures, images=pictures.images[order], labels=pictures.labels[order])
    config = tiny_config("factorized-peers", batch_size=30)
    scenario = tiny_scenario(config, (ordered, tiny_set("lines", 3, 300, seed=1)))
    own = scenario.labels[scenario.clients[0].train]
    assert torch.equal(own, own.sort().values)
    task = build_federation(config, scenario, torch.device("cpu")).engine.work
    for batch in task.plain_batches(0):
        assert torch.bincount(scenario.labels[batch], minlength=3).min() >= 3
    again = task.plain_batches(0)
    assert torch.equal(again, task.plain_batches(0))


def test_a_normalisation_inside_the_classifier_is_recalibrated_too() -> None:
    federation = tiny_federation("stand-alone", head_layers=2, head_norm=True, recalibrate=True)
    (name,) = (name for name in federation.roles if name.startswith("head.") and name.endswith("running_mean"))
    train(federation)
    once = federation.engine.tested(1, 0, federation.clients)[name]
    federation.clients.state.client(0)[name].fill_(7.0)
    assert torch.equal(federation.engine.tested(1, 0, federation.clients)[name], once)
    assert once.abs().max() < 5


def test_a_model_adapted_for_the_test_is_recalibrated_after_that() -> None:
    federation = tiny_federation("per-fedavg", options={"test": "adapted", "inner": 0.3}, recalibrate=True)
    run_round(federation, 1)
    tested = federation.engine.tested(1, 0, federation.clients)
    again = federation.engine._recalibrated(0, {name: tensor.detach() for name, tensor in tested.items()})
    for name in (name for name in again if "running" in name):
        assert torch.allclose(again[name], tested[name])
        assert not torch.allclose(again[name], federation.clients.state.client(0)[name])
