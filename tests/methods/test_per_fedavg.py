import pytest
import torch
from torch.func import functional_call

from factorized_fl.core.views import Batch
from factorized_fl.methods.per_fedavg import PerFedAvg
from factorized_fl.simulate.rounds import run_round
from tests.methods.hand import local, server
from tests.tiny import tiny_federation


def quadratic(seed: int) -> Batch:
    """The batch of f(w) = w^T A w / 2 - b^T w, with A as the images and b as the labels."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    return Batch(half @ half.T, torch.randn(3, dtype=torch.float64, generator=generator))


def at(w: torch.Tensor, batch: Batch) -> torch.Tensor:
    return batch.images @ w - batch.labels


def loss_gradient(parameters, batch):
    return {"w": at(parameters["w"].detach(), batch)}


W = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
D, E, F = (quadratic(seed) for seed in range(3))


def test_first_order_step() -> None:
    found = PerFedAvg(inner=0.1).gradient(local(loss_gradient), {"w": W}, [D, E])["w"]
    assert torch.allclose(found, E.images @ (W - 0.1 * (D.images @ W - D.labels)) - E.labels)


def test_first_order_step_by_hand_in_one_dimension() -> None:
    """F(w) = w^2 - w: g(3) = 5, w~ = 3 - 0.1 * 5 = 2.5, g(w~) = 4."""
    batch = Batch(torch.tensor([[2.0]]), torch.tensor([1.0]))
    found = PerFedAvg(inner=0.1).gradient(local(loss_gradient), {"w": torch.tensor([3.0])}, [batch, batch])["w"]
    assert found.item() == pytest.approx(4.0)


@pytest.mark.parametrize("delta", [1e-3, 0.5])
def test_hessian_free_step(delta: float) -> None:
    """Central differences are exact for a quadratic, whatever their step; the Hessian is the third batch's."""
    method = PerFedAvg(inner=0.1, hessian_free=True, delta=delta)
    found = method.gradient(local(loss_gradient), {"w": W}, [D, E, F])["w"]
    outer = at(W - 0.1 * at(W, D), E)
    assert torch.allclose(found, (torch.eye(3, dtype=torch.float64) - 0.1 * F.images) @ outer, atol=1e-9)
    same = method.gradient(local(loss_gradient), {"w": W}, [D, D, D])["w"]
    exact = torch.autograd.functional.jacobian(lambda w: _meta_objective(w, 0.1), W)
    assert torch.allclose(same, exact, atol=1e-9)


def _meta_objective(w: torch.Tensor, alpha: float) -> torch.Tensor:
    inner = w - alpha * at(w, D)
    return inner @ D.images @ inner / 2 - D.labels @ inner


@pytest.mark.parametrize(("hessian_free", "batches"), [(False, [D, E]), (True, [D, E, F, F])])
def test_every_gradient_has_its_own_batch(hessian_free: bool, batches: list[Batch]) -> None:
    asked: list[Batch] = []

    def watching(parameters, batch):
        asked.append(batch)
        return loss_gradient(parameters, batch)

    method = PerFedAvg(hessian_free=hessian_free)
    method.gradient(local(watching), {"w": W}, [D, E, F][: method.batches_per_step])
    assert [id(batch) for batch in asked] == [id(batch) for batch in batches]
    assert method.batches_per_step == len({id(batch) for batch in batches})


@pytest.mark.parametrize(
    ("options", "passes", "steps"),
    [
        ({}, 2, 4),  # 18 images are two batches of 8; two epochs are four steps for other methods, too
        ({"hessian_free": True}, 3, 4),
        ({"compensate": False}, 1, 2),
        ({"compensate": False, "hessian_free": True}, 1, 1),  # four batches are one step and a rest
    ],
)
def test_passes_give_as_many_steps_as_other_methods_make(options: dict, passes: int, steps: int) -> None:
    federation = tiny_federation("per-fedavg", epochs=2, options=options)
    assert federation.method.passes == passes
    records, _ = run_round(federation, 1)
    assert records[0]["steps"] == steps


def test_the_gradient_does_not_change_parameters() -> None:
    parameters = {"w": W.clone()}
    PerFedAvg(inner=0.1, hessian_free=True).gradient(local(loss_gradient), parameters, [D, E, F])
    assert torch.equal(parameters["w"], W)


def test_all_clients_have_the_same_weight_whatever_their_size() -> None:
    mixing = PerFedAvg().mix(server(torch.randn(3, 2), sizes=[1, 10, 100], received=[True, False, True]))
    assert mixing.matrix.tolist() == [[0.5, 0, 0.5]] * 3


def model_tested_in(federation, monkeypatch, round_number: int) -> dict[int, dict[str, torch.Tensor]]:
    """The tensors that the engine tests in a round, by client."""
    found = {}
    real = federation.engine._test

    def watching(k, tensors, positions):
        assert torch.equal(positions, federation.scenario.clients[k].test)
        found[k] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return real(k, tensors, positions)

    monkeypatch.setattr(federation.engine, "_test", watching)
    run_round(federation, round_number)
    return found


def test_adapted_protocol_tests_the_rounds_start_after_one_inner_step(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("per-fedavg", options={"test": "adapted", "inner": 0.3})
    run_round(federation, 1)
    mean = {name: federation.clients.state.common[name].mean(0) for name in federation.shared}
    before = {k: {n: t.clone() for n, t in federation.clients.state.client(k).items()} | mean for k in (1, 2)}
    found = model_tested_in(federation, monkeypatch, 2)
    assert sorted(found) == [0, 1, 2, 3]
    for k in (1, 2):
        own = federation.clients.state.client(k)
        begin = {name: tensor.clone() for name, tensor in before[k].items()}  # the classifier's among them
        parameters = {n: begin[n].requires_grad_() for n in federation.clients.momentum.client(k)}
        model = federation.engine._model(k).train()
        batch = next(federation.engine.batches(2, k))
        logits = functional_call(model, begin | parameters, (batch.images,))
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        gradient = torch.autograd.grad(loss, list(parameters.values()))
        for (name, start), slope in zip(parameters.items(), gradient, strict=True):
            assert torch.allclose(found[k][name], start - 0.3 * slope, atol=1e-6), name
        assert not torch.allclose(found[k]["conv1.conv.weight"], own["conv1.conv.weight"], atol=1e-4)


def test_adapted_evaluation_changes_no_state() -> None:
    federation = tiny_federation("per-fedavg", options={"test": "adapted", "inner": 0.3})
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.tensors.items()}
    first = federation.engine.evaluate(1, range(4), federation.clients)
    second = federation.engine.evaluate(1, range(4), federation.clients)
    assert first == second
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.tensors.items())


def test_the_protocol_of_the_test_does_not_change_training() -> None:
    trained, adapted = (tiny_federation("per-fedavg", options={"test": test}) for test in ("trained", "adapted"))
    for round_number in (1, 2):
        run_round(trained, round_number)
        run_round(adapted, round_number)
    assert all(torch.equal(tensor, adapted.tensors[name]) for name, tensor in trained.tensors.items())


def test_common_protocol_tests_the_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("per-fedavg")
    found = model_tested_in(federation, monkeypatch, 1)
    for k, tensors in found.items():
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in federation.clients.state.client(k).items())
