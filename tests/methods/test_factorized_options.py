import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from factorized_fl.core.mixing import weigh
from factorized_fl.core.roles import roles
from factorized_fl.methods.factorized_fl import FactorizedFL, FactorizedFLBeta
from factorized_fl.nn import Role, build_model
from factorized_fl.nn.factorized import LAYOUTS, RankOneSparse
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import download, run_round
from tests.methods.hand import NOTHING, local, server
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set

ROLES = {"c.mu": Role("mu", False), "c.u": Role("u", False), "h.mu": Role("mu", True), "bias": Role("bias", True)}


def agreeing(method: str = "factorized-fl", **options) -> Federation:
    config = tiny_config(method, permuted=False, options=options)
    return build_federation(config, tiny_scenario(config, (tiny_set(),)), torch.device("cpu"))


def parametrised(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    model = build_model("cnn", 3, channels=1, width=0.25)
    return FactorizedFL(**options).parametrize(model, torch.Generator().manual_seed(0), labels_agree=True)


# -- sequential


@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4], [3, 1]])
def test_sequential_mixing_overwrites_one_client_after_the_other(clients: list[int]) -> None:
    """As in the loop of the authors' code: later clients of the round read what earlier ones received."""
    prints, stack = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    settings = {"tau": -1.0, "epsilon": 2.0}

    def ask(sequential: bool):
        asked = server(stack, fingerprints=prints, clients=clients, seed=7)
        return FactorizedFL(sequential=sequential, **settings).mix(asked)

    frozen, found = ask(False), ask(True)
    rows = stack.clone()
    for k in np.random.default_rng(7).permutation(clients):
        rows[k] = frozen.matrix[k] @ rows
    assert torch.allclose(weigh(found.matrix, stack), rows)
    assert not torch.allclose(found.matrix, frozen.matrix)
    assert found.similarity is not None
    assert frozen.similarity is not None
    assert torch.equal(found.similarity, frozen.similarity)  # matching is by what the clients sent
    first = np.random.default_rng(7).permutation(clients)[0]
    assert torch.allclose(found.matrix[first], frozen.matrix[first])


# -- the classifier


def test_a_reset_classifier_has_its_initial_values_in_each_round_and_never_travels() -> None:
    federation = agreeing(head="reset")
    heads = [name for name, role in federation.roles.items() if role.head]
    assert len(heads) == 4  # u, v, mu, bias
    assert not federation.shared & set(heads)
    initial = {name: federation.clients.state.common[name].clone() for name in heads}
    run_round(federation, 1)
    trained = {name: federation.clients.state.common[name].clone() for name in heads}
    momentum = {name: tensor.clone() for name, tensor in federation.clients.momentum.common.items()}
    assert all(not torch.equal(trained[name], initial[name]) for name in heads)
    download(federation, 2, range(4), [0, 1, 3])
    for name in heads:
        now = federation.clients.state.common[name]
        assert torch.equal(now[[0, 1, 3]], initial[name][[0, 1, 3]])
        assert torch.equal(now[2], trained[name][2])  # a client that does not participate keeps its classifier
    assert all(torch.equal(tensor, momentum[name]) for name, tensor in federation.clients.momentum.common.items())


def test_the_classifier_is_reset_in_every_round() -> None:
    federation = agreeing(head="reset")
    initial = federation.clients.state.common["head.bias"].clone()
    for round_number in (1, 2, 3):
        run_round(federation, round_number)
        assert not torch.equal(federation.clients.state.common["head.bias"], initial)
    download(federation, 4, range(4), range(4))
    assert torch.equal(federation.clients.state.common["head.bias"], initial)


@pytest.mark.parametrize("method", ["factorized-fl", "factorized-fl-beta"])
def test_reset_does_not_touch_a_classifier_whose_labels_differ(method: str) -> None:
    federation = tiny_federation(method, options={"head": "reset"})
    shared = tiny_federation(method, options={"head": "share"})
    for each in (federation, shared):
        run_round(each, 1)
        before = [{n: t.clone() for n, t in each.clients.state.client(k).items()} for k in range(4)]
        download(each, 2, range(4), range(4))
        for k in range(4):
            heads = [name for name, role in each.roles.items() if role.head]
            assert all(torch.equal(each.clients.state.client(k)[name], before[k][name]) for name in heads)
    assert federation.clients.initial == {}
    assert federation.shared == shared.shared


def test_a_shared_classifier_sends_only_u_and_with_beta_all_tensors() -> None:
    for method, kinds in (("factorized-fl", {"u"}), ("factorized-fl-beta", {"u", "v", "mu", "bias"})):
        federation = agreeing(method)
        assert {federation.roles[name].kind for name in federation.shared if federation.roles[name].head} == kinds
        assert federation.clients.initial == {}
        reset = agreeing(method, head="reset")
        assert not any(reset.roles[name].head for name in reset.shared)


def test_xavier_for_the_classifiers_mu_alone() -> None:
    plain, drawn = parametrised(), parametrised(head_mu="xavier")
    state, other = plain.state_dict(), drawn.state_dict()
    changed = [name for name in state if not torch.equal(state[name], other[name])]
    assert changed == ["head.parametrizations.weight.original"]
    mu = other[changed[0]]
    bound = math.sqrt(6 / sum(mu.shape))
    assert mu.abs().max() <= bound
    assert mu.abs().max() > 0.7 * bound
    assert state[changed[0]].count_nonzero() == 0
    assert all(state[n].count_nonzero() == 0 for n, role in roles(plain).items() if role.kind == "mu")


# -- layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_reaches_the_kernels(layout: str) -> None:
    model = parametrised(layout=layout)
    part = model.conv2.conv.parametrizations.weight[0]
    assert isinstance(part, RankOneSparse)
    out, inp, side, _ = part.shape
    u = {"taps": side**2, "released": side**2, "mixed": inp * side}
    v = {"taps": out * inp, "released": out * inp, "mixed": out * side}
    assert (part.u.numel(), part.v.numel()) == (u[layout], v[layout])
    weight, flat_u, flat_v = model.conv2.conv.weight.detach(), part.u.flatten(), part.v.flatten()
    assert model.conv2.conv.parametrizations.weight.original.count_nonzero() == 0
    for o, i, p, q in ((0, 0, 0, 0), (5, 2, 1, 2), (out - 1, inp - 1, 2, 0)):
        if layout == "taps":
            row, column = side * p + q, inp * o + i
        elif layout == "mixed":
            row, column = side * i + p, side * o + q
        else:
            row, column = divmod(((o * inp + i) * side + p) * side + q, out * inp)
        assert weight[o, i, p, q].item() == pytest.approx((flat_u[row] * flat_v[column]).item(), abs=1e-7)


# -- sparsity


def test_l1_penalty_adds_lambda_times_the_sign_of_mu() -> None:
    now = {
        "c.mu": torch.tensor([2.0, -3.0, 0.0]),
        "c.u": torch.tensor([1.0]),
        "h.mu": torch.tensor([-1.0]),
        "bias": torch.tensor([4.0]),
    }
    step = local(lambda at, batch: {name: torch.full_like(t, 0.5) for name, t in at.items()}, roles=ROLES)
    found = FactorizedFL(sparsity=0.1).gradient(step, now, [NOTHING])
    assert found["c.mu"].tolist() == pytest.approx([0.6, 0.4, 0.5])
    assert found["h.mu"].tolist() == pytest.approx([0.4])
    assert found["c.u"].tolist() == found["bias"].tolist() == [0.5]
    for method in (FactorizedFL(sparsity=0.1, l1=False), FactorizedFL(sparsity=0.0)):
        assert all((t == 0.5).all() for t in method.gradient(step, now, [NOTHING]).values())
    once = FactorizedFL(sparsity=0.1, penalty="epoch").gradient(replace(step, epoch_steps=4), now, [NOTHING])
    assert once["c.mu"].tolist() == pytest.approx([0.525, 0.475, 0.5])


def test_the_steps_of_an_epoch_are_those_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """18 training images in batches of 8: two steps in each of three epochs."""
    federation = tiny_federation("factorized-fl", options={"penalty": "epoch"}, epochs=3)
    seen = []
    gradient = FactorizedFL.gradient
    monkeypatch.setattr(
        FactorizedFL,
        "gradient",
        lambda self, local, *rest: (seen.append(local.epoch_steps), gradient(self, local, *rest))[1],
    )
    records, _ = run_round(federation, 1)
    assert records[0]["steps"] == 6
    assert set(seen[:6]) == {2}


def test_pruning_at_the_end_of_a_round_sets_entries_below_the_threshold_to_zero() -> None:
    tensors = {
        "c.mu": torch.tensor([0.24, -0.24, 0.25, -0.25, 3.0]),
        "c.u": torch.tensor([0.01]),
        "h.mu": torch.tensor([0.1, -0.5]),
        "bias": torch.tensor([0.01]),
    }
    kept = {name: t.clone() for name, t in tensors.items()}
    end = local(lambda at, batch: {}, roles=ROLES, tensors=tensors)
    assert FactorizedFL(sparsity=0.25, prune="test").finish(end) == {}
    assert all(torch.equal(t, kept[name]) for name, t in tensors.items())
    assert FactorizedFL(sparsity=0.25, prune="round").finish(end) == {}
    assert tensors["c.mu"].tolist() == [0, 0, 0.25, -0.25, 3]
    assert tensors["h.mu"].tolist() == [0, -0.5]
    assert tensors["c.u"].item() == tensors["bias"].item() == pytest.approx(0.01)


def test_pruning_each_round_reaches_the_clients_state() -> None:
    kept, pruned = (
        tiny_federation("factorized-fl", options={"sparsity": 0.02, "prune": prune}) for prune in ("test", "round")
    )
    run_round(kept, 1)
    run_round(pruned, 1)
    for name, role in kept.roles.items():
        for k in range(4):
            a, b = kept.clients.state.client(k)[name], pruned.clients.state.client(k)[name]
            assert torch.equal(b, a.masked_fill(a.abs() < 0.02, 0.0) if role.kind == "mu" else a)
    mu = [kept.clients.state.common[name] for name, role in kept.roles.items() if role.kind == "mu" and not role.head]
    assert any(((t != 0) & (t.abs() < 0.02)).any() for t in mu)


def test_beta_counts_the_entries_of_mu_that_survive() -> None:
    tensors = {
        "c.mu": torch.tensor([0.24, -0.24, 0.25, -0.25, 3.0]),
        "c.u": torch.tensor([0.01]),
        "h.mu": torch.tensor([0.1, -0.5]),
        "bias": torch.tensor([0.01]),
    }
    method = FactorizedFLBeta(sparsity=0.25)
    cost = method.card.cost(method, tensors, ROLES)
    assert (cost.up, cost.down) == (1 + 3 + 1, 1 + 3 + 1)
