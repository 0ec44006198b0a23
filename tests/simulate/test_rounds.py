from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factorized_fl.core.errors import UserError
from factorized_fl.core.mixing import Mean, weigh
from factorized_fl.core.server import Sampling
from factorized_fl.core.views import Batch, Local, Mixing, Server, Tensors
from factorized_fl.methods import METHODS, Method
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import download, run_round, sampling_of
from factorized_fl.simulate.run import run_federation
from tests.tiny import tiny_config, tiny_federation, tiny_scenario


def copy(federation) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in federation.tensors.items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_with_different_numbers_of_classes(method: str) -> None:
    # SCAFFOLD computes its control variates from the number of steps and the rate, which momentum would change.
    own = {"momentum": 0.0, "lr": 0.2} if method == "scaffold" else {}
    federation = tiny_federation(method, rounds=6, epochs=3, **own)
    for round_number in range(1, 7):
        records, _ = run_round(federation, round_number)
    assert len(records) == 4
    mean = sum(record["accuracy"] for record in records) / 4
    assert mean > 0.45  # chance is 0.33 and 0.2


@pytest.mark.parametrize("method", METHODS)
def test_mixing_changes_only_tensors_that_travel(method: str) -> None:
    federation = tiny_federation(method)
    run_round(federation, 1)
    before = copy(federation)
    download(federation, 2, range(4), range(4))
    after = federation.tensors
    for name, tensor in before.items():
        bare = name.split("/", 2)[-1]
        # A hook on the download may change what the client keeps, and `mix` the memory of the method at the server.
        kept = name.startswith("kept/") and federation.method.receives
        if not kept and not name.startswith("method") and not (name.startswith("state/") and bare in federation.shared):
            assert torch.equal(tensor, after[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_classifier_and_statistics_never_travel_when_labels_differ(method: str) -> None:
    federation = tiny_federation(method)
    assert not any(federation.roles[name].head for name in federation.shared)
    if not federation.method.sends_statistics:  # FedFOMO tries models with the statistics of their senders
        assert not any(federation.roles[name].kind == "stat" for name in federation.shared)


def test_classifier_travels_when_labels_agree() -> None:
    from factorized_fl.simulate.build import build_federation
    from tests.tiny import tiny_scenario, tiny_set

    for method, kinds in (("fedavg", {"body", "bias"}), ("factorized-fl", {"u"}), ("stand-alone", set())):
        config = tiny_config(method, permuted=False)
        federation = build_federation(config, tiny_scenario(config, (tiny_set(),)), torch.device("cpu"))
        shared = {federation.roles[name].kind for name in federation.shared if federation.roles[name].head}
        assert shared == kinds


def test_fedavg_gives_all_clients_the_weighted_mean_of_a_snapshot() -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    before = {name: tensor.clone() for name, tensor in federation.clients.state.common.items()}
    mixing = download(federation, 2, range(4), range(4)).mixing
    assert mixing is not None
    sizes = federation.scenario.sizes
    for name in federation.shared:
        expected = weigh((sizes / sizes.sum()).expand(4, 4), before[name])
        assert torch.equal(federation.clients.state.common[name], expected)


def test_the_first_round_has_no_mixing_and_all_clients_begin_equal() -> None:
    federation = tiny_federation("factorized-fl-beta")
    for tensor in federation.clients.state.common.values():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor))
    records, mixing = run_round(federation, 1)
    assert mixing is None
    assert [record["down_bytes"] for record in records] == [0] * 4
    assert all(record["up_bytes"] > 0 for record in records)


def test_only_sampled_clients_train_and_at_the_end_all_that_ever_trained_are_tested() -> None:
    federation = tiny_federation("factorized-fl-beta", fraction=0.5, rounds=4)
    seen: set[int] = set()
    for round_number in range(1, 5):
        before = copy(federation)
        sampled, _ = sampling_of(federation).draw(round_number)
        assert len(sampled) == 2
        seen |= set(sampled)
        records, _ = run_round(federation, round_number)
        assert [r["client"] for r in records if r["steps"]] == sampled
        if round_number < 4:
            assert [r["client"] for r in records] == sampled
        for name, tensor in federation.clients.state.flat("state").items():
            for k in set(range(4)) - set(sampled):
                if name.startswith("state/all/"):
                    assert torch.equal(tensor[k], before[name][k])
    assert [r["client"] for r in records] == sorted(seen)
    assert all(r["up_bytes"] == 0 and r["train_loss"] is None for r in records if r["client"] not in sampled)


def test_sampling_is_seeded() -> None:
    sampling = Sampling(seed=1, clients=40, fraction=0.25)
    assert sampling.draw(3) == sampling.draw(3)
    assert sampling.draw(3) != sampling.draw(4)
    assert sampling.draw(3) != Sampling(seed=2, clients=40, fraction=0.25).draw(3)
    assert len(sampling.draw(3)[0]) == sampling.per_round == 10
    assert len(Sampling(seed=1, clients=4, fraction=0.01).draw(1)[0]) == 1


def test_permuting_the_labels_of_one_client_does_not_change_what_travels() -> None:
    """Labels and head permuted together is the same learning problem, so u, v and mu evolve identically."""
    plain, renamed = (tiny_federation("factorized-fl", permuted=False) for _ in range(2))
    order = torch.tensor([2, 0, 1])
    client = renamed.scenario.clients[1]
    client.labelling.copy_(order)
    inverse = order.argsort()
    own = renamed.clients.state.own[1]
    for tensor in own.values():
        if tensor.shape[0] == 3:
            tensor.copy_(tensor[inverse])
    for round_number in (1, 2):
        run_round(plain, round_number)
        run_round(renamed, round_number)
    for name in plain.shared:
        assert torch.allclose(plain.clients.state.common[name], renamed.clients.state.common[name], atol=1e-6), name


EYE = torch.eye(4, dtype=torch.float64)
NO_MIXING = "must return a Mixing of 4 x 4 clients"
WRONG_ROWS = "returns wrong weights: rows must sum to 1, without negative weights"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, NO_MIXING),
        (torch.eye(4), NO_MIXING),
        (Mixing(torch.eye(2, dtype=torch.float64)), NO_MIXING),
        (Mixing(torch.ones(4)), NO_MIXING),
        (Mixing(EYE, others={"head.weight": torch.eye(3)}), NO_MIXING),
        (Mixing(EYE, others={"conv1.conv.weight": 1.0}), NO_MIXING),  # type: ignore[dict-item]
        (Mixing(EYE.tolist()), NO_MIXING),  # type: ignore[arg-type]
        (Mixing(None), NO_MIXING),  # type: ignore[arg-type]
        (Mixing(torch.full((4, 4), torch.nan, dtype=torch.float64)), WRONG_ROWS),
        (Mixing(2 * EYE), WRONG_ROWS),
        (Mixing(torch.tensor([[2.0, -1, 0, 0], *torch.eye(4).tolist()[1:]])), WRONG_ROWS),
        (Mixing(EYE, others={"conv1.conv.weight": 2 * EYE}), WRONG_ROWS),
        (Mixing(Mean(torch.tensor([0.5, 0.5, 0.5, -0.5]))), WRONG_ROWS),
        (Mixing(torch.full((4, 3), 1 / 3)), "returns wrong weights: the matrix must be square"),
    ],
)
def test_a_malformed_mixing_is_refused(answer: object, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", lambda self, server: answer)
    with pytest.raises(UserError, match=f"The mix of fedavg {complaint}"):
        run_round(federation, 2)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Mixing(EYE, others={"nix": EYE}), "others names a tensor that does not travel"),
        (Mixing(EYE, similarity=EYE[0]), "similarity must be a tensor of 4 x 4 clients"),
        (Mixing(EYE, state={"round": 3}), "state must be a dictionary of tensors"),  # type: ignore[dict-item]
        (Mixing(EYE, downloads=torch.ones(3)), "downloads must be a tensor of 4 clients"),
        (Mixing(EYE, revert=torch.ones(4, dtype=torch.bool)), "revert needs needs_start = True in the class"),
        (Mixing(EYE, revert=torch.ones(3, dtype=torch.bool)), "revert must be a tensor of 4 clients"),
        (Mixing(EYE, rows={"nix": torch.ones(1)}), "rows names a tensor that does not travel"),
        (Mixing(EYE, rows={"conv1.conv.weight": torch.ones(1)}), "rows must have the tensor's shape after one row"),
        (Mixing(EYE, rows={"conv1.conv.weight": 1.0}), "rows must have the tensor's shape after one row"),
        (
            Mixing(EYE, extra={"nix": torch.ones(1, 2)}),
            r"extra must hold \[\] with one row, or one for each participant",
        ),
    ],
)
def test_the_malformed_part_of_a_mixing_is_named(
    answer: Mixing, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = tiny_federation("fedavg")
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", lambda self, server: answer)
    with pytest.raises(UserError, match=f"The mix of fedavg is not right: {complaint}"):
        run_round(federation, 2)


@pytest.mark.parametrize("name", ["fingerprints", "sizes", "received", "updated"])
def test_a_mix_that_changes_what_the_server_keeps_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change would stay for all rounds to come."""

    def forget(self: object, server: Server) -> Mixing:
        getattr(server, name).zero_()
        return Mixing(EYE)

    federation = tiny_federation("factorized-fl")
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", forget)
    with pytest.raises(UserError, match=rf"The mix of factorized-fl changes {name} in place: make a new tensor"):
        run_round(federation, 2)


@pytest.mark.parametrize("method", ["fedavg", "fedfomo"])  # `mix` of FedFOMO reads Server.start, too
def test_a_mix_that_changes_tensors_of_clients_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def centre(self: object, server: Server) -> Mixing:
        for tensor in server.stack.values():
            tensor -= tensor.mean(0)
        return Mixing(EYE)

    federation = tiny_federation(method)
    run_round(federation, 1)
    monkeypatch.setattr(type(federation.method), "mix", centre)
    with pytest.raises(UserError, match=rf"The mix of {method} changes .* in place: make a new tensor instead"):
        run_round(federation, 2)


@pytest.mark.parametrize("spoil", ["missing", "shape", "none"])
def test_a_malformed_gradient_is_refused(spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_methods_that_match_give_a_client_that_diverged_no_weight(method: str) -> None:
    federation = tiny_federation(method)

    def diverge(client: int) -> None:
        if client == 3:
            for tensor in federation.clients.state.client(3).values():
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    run_round(federation, 1, diverge)
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


def test_a_mixing_may_hold_views_and_one_tensor_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mix_with_views(self: object, server: Server) -> Mixing:
        matrix = torch.eye(4, dtype=torch.float64).T.flip(0).T.flip(0).T
        return Mixing(matrix, matrix, {"one": matrix, "two": matrix})

    config = tiny_config("fedavg", rounds=2)
    monkeypatch.setattr(METHODS["fedavg"], "mix", mix_with_views)
    directory = run_federation(config, tmp_path / "run", scenario=tiny_scenario(config))
    assert torch.equal(directory.mixing(2)["state.two"], torch.eye(4, dtype=torch.float64))
    assert directory.load_checkpoint()["method/one"].tolist() == torch.eye(4).tolist()
