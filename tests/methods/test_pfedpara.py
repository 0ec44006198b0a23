import torch

from factorized_fl.core.mixing import weigh
from factorized_fl.core.roles import roles
from factorized_fl.methods.pfedpara import PFedPara
from factorized_fl.nn import build_model
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import download, run_round
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set


def agreeing(**options) -> Federation:
    config = tiny_config("pfedpara", permuted=False, options=options)
    return build_federation(config, tiny_scenario(config, (tiny_set(),)), torch.device("cpu"))


def test_shared_halves_are_averaged_factor_by_factor_and_personal_ones_stay() -> None:
    federation = tiny_federation("pfedpara", options={"gamma": 0.5})
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    download(federation, 2, range(4), range(4))
    weights = federation.scenario.sizes / federation.scenario.sizes.sum()
    kinds = {}
    for name, tensor in federation.clients.state.common.items():
        kind = federation.roles[name].kind
        kinds[kind] = kinds.get(kind, 0) + 1
        if kind in ("w1", "norm"):
            assert torch.equal(tensor, weigh(weights.expand(4, 4), before[name]))
            assert torch.equal(tensor[0], tensor[3])
        else:
            assert torch.equal(tensor, before[name])
        if kind == "w2":
            assert not torch.equal(tensor[0], tensor[3])
    assert kinds["w1"] == kinds["w2"] == 9


def test_both_halves_are_trained() -> None:
    federation = tiny_federation("pfedpara", options={"gamma": 0.5})
    before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    run_round(federation, 1)
    for name, tensor in federation.clients.state.common.items():
        if federation.roles[name].kind in ("w1", "w2"):
            assert not torch.equal(tensor[0], before[name][0])


def test_classifier_is_dense_and_local_when_labels_differ() -> None:
    federation = tiny_federation("pfedpara")
    head = {name: role.kind for name, role in federation.roles.items() if role.head}
    assert head == {"head.weight": "body", "head.bias": "bias"}
    assert not federation.shared & head.keys()


def test_a_low_rank_classifier_is_shared_without_its_bias_when_labels_agree() -> None:
    federation = agreeing(head="low-rank")
    head = {name: role.kind for name, role in federation.roles.items() if role.head}
    assert sorted(head.values()) == ["bias", "w1", "w1", "w2", "w2"]
    assert {head[name] for name in federation.shared & head.keys()} == {"w1"}
    assert len(federation.shared & head.keys()) == 2


def test_a_dense_classifier_travels_whole_when_labels_agree_and_stays_when_they_differ() -> None:
    federation, apart = agreeing(), tiny_federation("pfedpara")
    whole = {"head.weight": "body", "head.bias": "bias"}
    for each in (federation, apart):
        assert {name: role.kind for name, role in each.roles.items() if role.head} == whole
    assert federation.shared == apart.shared | whole.keys()
    counted, usual = (
        method.card.cost(method, federation.clients.state.client(0), federation.roles).up
        for method in (PFedPara(), PFedPara(head="low-rank"))
    )
    assert counted - usual == sum(federation.clients.state.client(0)[name].numel() for name in whole)


def test_options_reach_the_ranks() -> None:
    small, large, filled = (
        PFedPara(**options).parametrize(
            build_model("resnet9", 10, width=0.25), torch.Generator().manual_seed(0), labels_agree=False
        )
        for options in ({"gamma": 0.1}, {"gamma": 0.9}, {"gamma": 0.1, "capacity": 0.9})
    )
    dense = build_model("resnet9", 10, width=0.25)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (small, large, filled, dense)]
    assert sizes[0] < 0.5 * sizes[1]
    assert 0.9 * sizes[3] < sizes[2] < sizes[3]
    assert {role.kind for role in roles(small).values() if role.head} == {"body", "bias"}
