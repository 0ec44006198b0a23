import math

import numpy as np
import pytest
import torch

from factorized_fl.core.mixing import cosine
from factorized_fl.core.roles import roles
from factorized_fl.methods import make_method
from factorized_fl.methods.ablations import FactorizedFedAvg, MixedLayout, RandomMatching, WithoutMu, WorstMatching
from factorized_fl.nn import build_model
from factorized_fl.simulate.rounds import download, run_round
from tests.methods.hand import server
from tests.tiny import tiny_federation


def clock(*degrees: float) -> torch.Tensor:
    """Unit vectors, whose similarities are the cosines of the angles between them."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def resnet9(method: str) -> tuple[dict[str, torch.Tensor], dict]:
    model = build_model("resnet9", 10)
    model = make_method(method, {}).parametrize(model, torch.Generator().manual_seed(0), labels_agree=True)
    return model.state_dict(), roles(model)


def numbers(method: str, kind: str, head: bool | None = None) -> int:
    tensors, kinds = resnet9(method)
    return sum(tensors[n].numel() for n, role in kinds.items() if role.kind == kind and head in (None, role.head))


# -- random matching


def peers_of(method: RandomMatching, count: int = 7, seed: int = 0, received=None) -> list[set[int]]:
    prints = clock(*np.linspace(0, 170, count))
    mixing = method.mix(server(torch.zeros(count, 1), fingerprints=prints, seed=seed, received=received))
    return [set(row.nonzero().flatten().tolist()) for row in mixing.matrix]


def test_random_peers_are_three_others_and_the_client_itself() -> None:
    found = peers_of(RandomMatching())
    assert all(len(peers) == 4 and k in peers for k, peers in enumerate(found))
    assert peers_of(RandomMatching()) == found
    others = [peers_of(RandomMatching(), seed=seed) for seed in range(1, 20)]
    assert all(other != found for other in others)
    assert set.union(*(other[0] for other in others)) == set(range(7))


def test_random_peers_change_from_round_to_round_and_repeat_by_seed() -> None:
    def draws(rounds):
        federation = tiny_federation("random-matching", clients=6, options={"others": 2})
        run_round(federation, 1)
        mixings = [download(federation, round_number, range(6), []).mixing for round_number in rounds]
        return [(mixing.matrix > 0).tolist() for mixing in mixings if mixing]

    second, third, again = draws([2, 3, 2])
    assert second != third
    assert second == again
    assert draws([2]) == [second]


def test_random_matching_weighs_its_peers_by_the_same_softmax() -> None:
    prints = clock(0, 60, 90, 120, 180)
    mixing = RandomMatching(epsilon=2.0).mix(server(torch.zeros(5, 1), fingerprints=prints, seed=3))
    for k, row in enumerate(mixing.matrix):
        exponents = {j: math.exp(2 * float(cosine(prints)[k, j])) for j in row.nonzero().flatten().tolist()}
        assert len(exponents) == 4
        for j, value in exponents.items():
            assert row[j].item() == pytest.approx(value / sum(exponents.values()))


@pytest.mark.parametrize("method", [RandomMatching(), WorstMatching()])
def test_only_clients_that_participated_are_peers_of_others(method: RandomMatching) -> None:
    received = [True, True, False, False, True, False, False]
    found = peers_of(method, received=received)
    assert found[0] == {0, 1, 4}
    assert found[2] == {0, 1, 2, 4}


def test_number_of_others_is_an_option() -> None:
    assert all(len(peers) == 2 for peers in peers_of(RandomMatching(others=1)))
    assert all(len(peers) == 7 for peers in peers_of(WorstMatching(others=20)))


# -- worst matching


def test_worst_peers_by_hand() -> None:
    """Similarity falls with the angle between the hands of the clock."""
    prints = clock(0, 10, 30, 90, 180)
    mixing = WorstMatching(epsilon=1.0).mix(server(torch.zeros(5, 1), fingerprints=prints))
    found = [set(row.nonzero().flatten().tolist()) for row in mixing.matrix]
    assert found == [{0, 2, 3, 4}, {1, 2, 3, 4}, {0, 2, 3, 4}, {0, 1, 3, 4}, {0, 1, 2, 4}]
    weights = [math.exp(math.cos(math.radians(angle))) for angle in (0, 30, 90, 180)]
    assert mixing.matrix[0, [0, 2, 3, 4]].tolist() == pytest.approx([w / sum(weights) for w in weights])


# -- what is averaged


def test_factorized_fedavg_weighs_by_images() -> None:
    mixing = FactorizedFedAvg().mix(server(torch.zeros(3, 1), sizes=[10, 30, 60], fingerprints=clock(0, 90, 180)))
    assert mixing.matrix.tolist() == [pytest.approx([0.1, 0.3, 0.6])] * 3


def test_factorized_fedavg_sends_all_factors() -> None:
    federation = tiny_federation("factorized-fedavg")
    assert {federation.roles[name].kind for name in federation.shared} == {"u", "v", "mu", "norm"}
    run_round(federation, 1)
    before = {name: federation.clients.state.common[name].clone() for name in federation.shared}
    download(federation, 2, range(4), range(4))
    share = (federation.scenario.sizes / federation.scenario.sizes.sum()).float()
    for name in federation.shared:
        mean = torch.einsum("k,k...->...", share, before[name])
        assert torch.allclose(federation.clients.state.common[name], mean.expand_as(before[name]), atol=1e-6)


def test_without_mu_a_weight_is_rank_one_and_resnet9_has_270882_factors() -> None:
    assert numbers("without-mu", "u") + numbers("without-mu", "v") == 270_882
    assert numbers("without-mu", "mu") == 0
    federation = tiny_federation("without-mu")
    run_round(federation, 1)
    assert {federation.roles[name].kind for name in federation.shared} == {"u", "v", "norm"}
    model = federation.engine.models[3]
    model.load_state_dict(federation.clients.state.client(0))
    weight = model.conv2.conv.weight.detach()
    singular = torch.linalg.svdvals(weight.flatten(2).flatten(0, 1))  # I*O x taps
    assert singular[0] > 0.1
    assert singular[1] < 1e-5


def test_without_mu_has_nothing_to_penalise() -> None:
    plain, penalised = (tiny_federation("without-mu", options={"sparsity": value}) for value in (0.0, 1.0))
    for federation in (plain, penalised):
        run_round(federation, 1)
    assert all(torch.equal(tensor, penalised.tensors[name]) for name, tensor in plain.tensors.items())
    assert WithoutMu().mix(server(torch.zeros(2, 1), sizes=[1, 3])).matrix.tolist() == [[0.25, 0.75]] * 2


def test_mixed_layout_has_3785_u_and_4672_v_in_resnet9s_convolutions() -> None:
    assert MixedLayout().layout == "mixed"
    assert numbers("mixed-layout", "u", head=False) == 3_785
    assert numbers("mixed-layout", "v", head=False) == 4_672
    assert numbers("mixed-layout", "mu", head=False) == 2_565_824
