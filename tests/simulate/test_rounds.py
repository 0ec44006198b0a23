from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import mix
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods import METHODS, Method
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import choose, download, run_round
from factorized_fl.simulate.run import run
from tests.tiny import tiny_config, tiny_federation, tiny_scenario


def copy(federation) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in federation.tensors.items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_with_different_numbers_of_classes(method: str) -> None:
    federation = tiny_federation(method, rounds=6, epochs=3)
    for round in range(1, 7):
        records, _ = run_round(federation, round)
    assert len(records) == 4
    mean = sum(record["accuracy"] for record in records) / 4
    assert mean > 0.45  # chance is 0.33 and 0.2


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_travel_stays_bit_identical_when_mixing(method: str) -> None:
    federation = tiny_federation(method)
    run_round(federation, 1)
    before = copy(federation)
    download(federation, 2, range(4), range(4))
    after = federation.tensors
    for name, tensor in before.items():
        bare = name.split("/", 2)[-1]
        if not (name.startswith("state/") and bare in federation.shared):
            assert torch.equal(tensor, after[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_classifier_and_statistics_never_travel_when_labels_differ(method: str) -> None:
    federation = tiny_federation(method)
    assert not any(federation.roles[name].head for name in federation.shared)
    assert not any(federation.roles[name].kind == "stat" for name in federation.shared)


def test_classifier_travels_when_labels_agree() -> None:
    from factorized_fl.simulate.build import build_federation
    from tests.tiny import tiny_scenario, tiny_set

    for method, kinds in (("fedavg", {"body", "bias"}), ("factorized-fl", {"u"}), ("stand-alone", set())):
        config = tiny_config(method, permuted=False)
        federation = build_federation(config, tiny_scenario(config, (tiny_set(),)), torch.device("cpu"))
        shared = {federation.roles[name].kind for name in federation.shared if federation.roles[name].head}
        assert shared == kinds


def test_fedavg_gives_everybody_the_weighted_mean_of_a_snapshot() -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    mixing, _ = download(federation, 2, range(4), range(4))
    assert mixing is not None
    sizes = federation.scenario.sizes
    for name in federation.shared:
        expected = mix((sizes / sizes.sum()).expand(4, 4), before[name])
        assert torch.equal(federation.clients.state.common[name], expected)


def test_first_round_has_no_mixing_and_all_start_alike() -> None:
    federation = tiny_federation("factorized-fl-beta")
    for tensor in federation.clients.state.common.values():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor))
    records, mixing = run_round(federation, 1)
    assert mixing is None
    assert [record["down_bytes"] for record in records] == [0] * 4
    assert all(record["up_bytes"] > 0 for record in records)


def test_only_the_chosen_take_part_and_at_the_end_all_who_ever_did_are_tested() -> None:
    federation = tiny_federation("factorized-fl-beta", fraction=0.5, rounds=4)
    seen: set[int] = set()
    for round in range(1, 5):
        before = copy(federation)
        chosen, _ = choose(federation.config, round)
        assert len(chosen) == 2
        seen |= set(chosen)
        records, _ = run_round(federation, round)
        assert [r["client"] for r in records if r["steps"]] == chosen
        if round < 4:
            assert [r["client"] for r in records] == chosen
        for name, tensor in federation.clients.state.flat("state").items():
            for k in set(range(4)) - set(chosen):
                if name.startswith("state/all/"):
                    assert torch.equal(tensor[k], before[name][k])
    assert [r["client"] for r in records] == sorted(seen)
    assert all(r["up_bytes"] == 0 and r["train_loss"] is None for r in records if r["client"] not in chosen)


def test_choice_is_seeded() -> None:
    config = tiny_config(clients=40, fraction=0.25)
    assert choose(config, 3) == choose(config, 3)
    assert choose(config, 3) != choose(config, 4)
    assert len(choose(config, 3)[0]) == 10
    assert len(choose(tiny_config(clients=4, fraction=0.01), 1)[0]) == 1


def test_permuting_one_clients_labels_changes_nothing_that_others_receive() -> None:
    """Labels and head permuted together is the same learning problem, so u, v and mu evolve identically."""
    plain, renamed = (tiny_federation("factorized-fl", permuted=False) for _ in range(2))
    order = torch.tensor([2, 0, 1])
    client = renamed.scenario.clients[1]
    client.labelling.copy_(order)
    inverse = order.argsort()
    own = renamed.state.own[1]
    for tensor in own.values():
        if tensor.shape[0] == 3:
            tensor.copy_(tensor[inverse])
    for round in (1, 2):
        run_round(plain, round)
        run_round(renamed, round)
    for name in plain.shared:
        assert torch.allclose(plain.state.common[name], renamed.state.common[name], atol=1e-6), name


@pytest.mark.parametrize(
    "answer",
    [
        None,
        torch.eye(4),
        Mixing(torch.eye(2, dtype=torch.float64)),
        Mixing(torch.full((4, 4), torch.nan, dtype=torch.float64)),
        Mixing(2 * torch.eye(4, dtype=torch.float64)),
        Mixing(torch.eye(4, dtype=torch.float64), others={"head.weight": torch.eye(3)}),
        Mixing(torch.eye(4, dtype=torch.float64).tolist()),  # type: ignore[arg-type]
        Mixing(torch.tensor([[2.0, -1, 0, 0], *torch.eye(4).tolist()[1:]])),
    ],
)
def test_what_is_no_mixing_of_all_clients_is_refused(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", lambda self, server: answer)
    with pytest.raises(UserError, match="mix of fedavg must be a Mixing of 4 x 4 clients whose rows sum to 1"):
        run_round(federation, 2)


EYE = torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Mixing(EYE, others={"nix": EYE}), "others names a tensor that does not travel"),
        (Mixing(EYE, similarity=EYE[0]), "similarity must be a tensor of 4 x 4 clients"),
        (Mixing(EYE, state={"round": 3}), "state must be a dictionary of tensors"),  # type: ignore[dict-item]
        (Mixing(EYE, downloads=torch.ones(3)), "downloads must be a tensor of 4 clients"),
        (Mixing(EYE, revert=torch.ones(4, dtype=torch.bool)), "revert needs needs_start = True in the class"),
    ],
)
def test_what_is_wrong_beside_the_matrix_is_named(
    answer: Mixing, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", lambda self, server: answer)
    with pytest.raises(UserError, match=f"The mix of fedavg is not right: {complaint}"):
        run_round(federation, 2)


@pytest.mark.parametrize("method", ["fedavg", "fedfomo"])  # FedFOMO is given where training began, too
def test_a_mix_that_changes_what_clients_have_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def centre(self: object, server: Server) -> Mixing:
        for tensor in server.stack.values():
            tensor -= tensor.mean(0)
        return Mixing(EYE)

    federation = tiny_federation(method)
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", centre)
    with pytest.raises(UserError, match=rf"The mix of {method} changes .* in place, which is not its own"):
        run_round(federation, 2)


@pytest.mark.parametrize("spoil", ["missing", "shape", "none"])
def test_a_gradient_that_is_none_for_every_parameter_is_refused(spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("fedavg")
    usual = type(federation.method).gradient

    def spoilt(self: Method, local: Local, parameters: Tensors, batches: Sequence[Batch]) -> Tensors | None:
        gradient = usual(self, local, parameters, batches)
        name = next(iter(gradient))
        if spoil == "missing":
            del gradient[name]
        else:
            gradient[name] = gradient[name].sum()  # which would be added everywhere
        return None if spoil == "none" else gradient

    monkeypatch.setattr(type(federation.method), "gradient", spoilt)
    with pytest.raises(UserError, match=r"The gradient of fedavg must have a tensor of shape \[.*\] for "):
        run_round(federation, 1)


@pytest.mark.parametrize("method", ["factorized-fl", "factorized-fl-beta", "fedfomo", "factorized-peers"])
def test_who_matches_is_not_lost_with_somebody_whose_training_diverged(method: str) -> None:
    federation = tiny_federation(method)
    run_round(federation, 1)
    for tensor in federation.clients.state.client(3).values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    records, mixing = run_round(federation, 2)
    assert mixing is not None
    assert mixing.matrix[:3, 3].tolist() == [0, 0, 0]
    assert [record["loss"] is not None for record in records] == [True, True, True, False]


def test_images_below_8_pixels_are_refused() -> None:
    config = tiny_config()
    scenario = tiny_scenario(config)
    small = replace(scenario, images=scenario.images[..., :4])
    with pytest.raises(UserError, match="Images of 8 x 4 pixels are too small: set image_size to 8 or more"):
        build_federation(config, small, torch.device("cpu"))


def test_a_method_may_answer_with_views_and_with_one_tensor_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mix_with_views(self: object, server: Server) -> Mixing:
        matrix = torch.eye(4, dtype=torch.float64).T.flip(0).T.flip(0).T
        return Mixing(matrix, matrix, {"one": matrix, "two": matrix})

    config = tiny_config("fedavg", rounds=2)
    monkeypatch.setattr(METHODS["fedavg"], "mix", mix_with_views)
    directory = run(config, tmp_path / "run", scenario=tiny_scenario(config))
    assert torch.equal(directory.mixing(2)["state.two"], torch.eye(4, dtype=torch.float64))
    assert directory.load_checkpoint()["method/one"].tolist() == torch.eye(4).tolist()
