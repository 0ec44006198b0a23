"""APFL, kNN-Per, IFCA, PACFL and FedProto, each equal to a computation by hand in float64."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from factorized_fl.core.errors import UserError
from factorized_fl.core.seeds import numpy_rng
from factorized_fl.core.views import Phase
from factorized_fl.methods.knn_per import Neighbours
from factorized_fl.methods.pacfl import PACFL, clusters_below
from factorized_fl.simulate.build import build_federation
from factorized_fl.simulate.rounds import run_round
from tests.methods.hand import Hand, assert_equal, compare, correct_answers, federation_of, resume
from tests.methods.test_by_hand import AGREE, EVERYONE, PARTICIPATION, SOME
from tests.methods.test_personal_by_hand import EQUAL, Known
from tests.tiny import tiny_config, tiny_federation, tiny_scenario, tiny_set

pytestmark = pytest.mark.usefixtures("doubled")


def images_of(hand: Hand, k: int, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's images as the engine tests them, and their labels."""
    scenario, client = hand.federation.scenario, hand.federation.scenario.clients[k]
    at = getattr(client, part)
    return ((scenario.images[at].float() / 255 - 0.5) / 0.25).double(), client.labelling[scenario.labels[at]]


def features_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The inputs of the last layer of a model in evaluation mode."""
    body = copy.deepcopy(model).eval()
    body.head = nn.Identity()
    with torch.no_grad():
        return body(images)


@PARTICIPATION
@AGREE
def test_apfl(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("apfl", agree, options={"share": 0.6, "own_lr": 0.5}, **participation)
    hand = Hand(federation)
    own = [hand.module(k) for k in hand.clients]
    shares = [0.6] * 4
    lr = 0.5 * hand.config.lr

    def mixture(k: int) -> nn.Module:
        mixed = copy.deepcopy(own[k])  # with the running statistics of the mixture
        with torch.no_grad():
            for p, v, w in zip(mixed.parameters(), own[k].parameters(), hand.models[k].parameters(), strict=True):
                p.copy_(shares[k] * v + (1 - shares[k]) * w)
        return mixed

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        model = hand.models[k]
        for step, batch in enumerate(federation.engine.batches(number, k)):
            mixed = mixture(k)
            mixed.zero_grad()
            cross_entropy(mixed(batch.images), batch.labels).backward()
            used, rise = shares[k], 0.0
            with torch.no_grad():
                for v, w, p in zip(own[k].parameters(), model.parameters(), mixed.parameters(), strict=True):
                    rise += float(((v - w) * p.grad).sum())
                    v -= lr * used * p.grad
                for here, there in zip(own[k].buffers(), mixed.buffers(), strict=True):
                    here.copy_(there)
            if step == 0:
                shares[k] = min(1.0, max(0.0, used - lr * rise))
            model.zero_grad()
            cross_entropy(model(batch.images), batch.labels).backward()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    decayed = p.grad + hand.config.weight_decay * p
                    hand.momentum[k][name] = hand.config.momentum * hand.momentum[k][name] + decayed
                    p -= hand.config.lr * hand.momentum[k][name]

    for number in range(1, participation["rounds"] + 1):
        hand.average(EQUAL)
        records = compare(federation, hand, number, one_client)
        for k in hand.clients:
            kept = federation.clients.kept.client(k)
            assert_equal(kept, own[k], f"own model of {k}")
            assert float(kept["share"]) == pytest.approx(shares[k], rel=1e-9)
        tested = {record["client"]: record["correct"] for record in records if record["correct"] is not None}
        assert tested == {k: correct_answers(hand, k, mixture(k)) for k in tested}
    assert any(share != 0.6 for share in shares)


@PARTICIPATION
@AGREE
def test_knn_per(agree: bool, participation: dict[str, Any]) -> None:
    options = {"share": 0.7, "neighbours": 3, "scale": 0.5, "store": 10}
    federation = federation_of("knn-per", agree, options=options, **participation)
    plain = federation_of("fedavg", agree, **participation)
    hand = Known(plain)

    def one_client(number: int, k: int) -> None:
        hand.download(k, given)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    differs = False
    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        images = sum(hand.weights[k] for k in hand.known)
        given = hand.weighted({k: hand.weights[k] / images for k in hand.known}) if hand.known else {}
        compare(plain, hand, number, one_client)
        if number == 3:
            resume(federation)
        records, _ = run_round(federation, number)
        tested = {record["client"]: record["correct"] for record in records if record["correct"] is not None}
        for k in tested:
            stored, classes = images_of(hand, k, "train")
            chosen = [round(float(at) - 1e-9) for at in torch.linspace(0, len(stored) - 1, 10).floor()]
            keys, values = features_of(hand.models[k], stored)[chosen], classes[chosen]
            tests, labels = images_of(hand, k, "test")
            scores = copy.deepcopy(hand.models[k]).eval()(tests).softmax(1)
            right = 0
            for row, feature, label in zip(scores, features_of(hand.models[k], tests), labels, strict=True):
                distance = (keys - feature).square().sum(1).sqrt()
                near = distance.argsort()[:3]
                weights = (-distance[near] / 0.5).exp()
                found = torch.zeros_like(row)
                for at, weight in zip(near, weights, strict=True):
                    found[values[at]] += 0.7 * weight / weights.sum()
                mixed = found + 0.3 * row
                right += int(mixed.argmax() == label)
                differs |= int(mixed.argmax()) != int(row.argmax())
            assert tested[k] == right
    assert differs


def test_an_empty_store_leaves_the_prediction() -> None:
    inner = nn.Linear(4, 3).double()
    layer = Neighbours(inner, 5, 0.5, 2, 1.0)
    x = torch.randn(6, 4, dtype=torch.float64)
    assert torch.equal(layer(x), inner(x))
    torch.testing.assert_close(layer.eval()(x), inner(x).log_softmax(1))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedbabu", {"tune_epochs": 2}),
        ("fedbabu", {"tune_epochs": 1, "tune": "head"}),
        ("fedper", {"tune_epochs": 2}),
        ("fedper", {"probe_epochs": 1, "tune_epochs": 1}),
    ],
)
@pytest.mark.parametrize("participation", [EVERYONE, SOME], ids=["everyone", "some"])
def test_fine_tuning_after_the_last_round(method: str, options: dict[str, Any], participation: dict[str, Any]) -> None:
    federation = federation_of(method, False, options=options, **participation)
    hand = Known(federation)
    hand.shared = [name for name in hand.shared if not name.startswith("head.")]
    in_head = lambda name: name.startswith("head.")  # noqa: E731
    trains = (lambda name: not in_head(name)) if method == "fedbabu" else (lambda name: True)
    probe, tune = options.get("probe_epochs", 0), options["tune_epochs"]
    phases = [(probe, in_head)] if probe else []
    phases.append((tune, in_head if options.get("tune") == "head" else lambda name: True))

    def one_client(number: int, k: int) -> None:
        hand.download(k, given)
        hand.train(number, k, hand.models[k], hand.momentum[k], only=trains)

    last = participation["rounds"]
    for number in range(1, last + 1):
        if hand.updated or method == "fedper":
            hand.begin()
        if method == "fedper":
            images = sum(hand.weights[k] for k in hand.known)
            given = hand.weighted({k: hand.weights[k] / images for k in hand.known}) if hand.known else {}
        else:
            hand.average(EQUAL)
            given = {name: hand.server[name] for name in hand.shared}
        records = compare(federation, hand, number, one_client)
        for record in records:
            if record["correct"] is None:
                continue
            model = copy.deepcopy(hand.models[record["client"]])
            if number == last:
                for index, (epochs, only) in enumerate(phases):
                    phase = Phase("tune", epochs)
                    zeros = hand.zeros(model)
                    hand.train(number, record["client"], model, zeros, phase=phase, index=-1 - index, only=only)
            assert record["correct"] == correct_answers(hand, record["client"], model)
            wanted = {name: t.clone() for name, t in model.state_dict().items()}
            assert_equal(federation.engine.tested(number, record["client"], federation.clients), wanted, "tested")


@PARTICIPATION
@AGREE
def test_ifca(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("ifca", agree, options={"clusters": 3}, **participation)
    hand = Hand(federation)
    rng = numpy_rng(hand.config.seed, "mix", 1)
    models = [dict(hand.server)]
    for _ in range(2):
        orders = {name: torch.from_numpy(rng.permutation(t.numel())) for name, t in models[0].items()}
        models.append({name: t.flatten()[orders[name]].view_as(t) for name, t in models[0].items()})
    choice = [0] * 4

    def loss(k: int, model: dict[str, torch.Tensor]) -> float:
        """Over complete batches in a fixed order, under the statistics of each batch."""
        trial, total = copy.deepcopy(hand.models[k]).train(), 0.0
        with torch.no_grad():
            for name, p in trial.named_parameters():
                if name in model:
                    p.copy_(model[name])
            batches = federation.engine.work.plain_batches(k)
            for chosen in batches:
                scenario, client = federation.scenario, federation.scenario.clients[k]
                images = ((scenario.images[chosen].float() / 255 - 0.5) / 0.25).double()
                total += float(cross_entropy(trial(images), client.labelling[scenario.labels[chosen]]))
        return total / len(batches)

    def one_client(number: int, k: int) -> None:
        losses = [loss(k, model) for model in models]
        choice[k] = losses.index(min(losses))
        hand.download(k, models[choice[k]])
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        for j in range(3):
            members = [k for k in hand.updated if choice[k] == j]
            if members:
                models[j] = {name: hand.mean(members, name, hand.weights) for name in models[j]}
        compare(federation, hand, number, one_client)
        assert federation.clients.kept.common["choice"].tolist() == choice


@PARTICIPATION
def test_pacfl(participation: dict[str, Any]) -> None:
    options = {"vectors": 2, "side": 8, "threshold": 12.0}
    federation = federation_of("pacfl", False, options=options, **participation)
    hand = Known(federation)
    hand.shared = [name for name in hand.shared if name != "fingerprint"]
    bases = []
    for k in hand.clients:
        pixels = images_of(hand, k, "train")[0].flatten(1)
        values, vectors = torch.linalg.eigh(pixels.T @ pixels)
        bases.append(vectors[:, values.argsort(descending=True)[:2]])

    def angle(i: int, j: int) -> float:
        return math.degrees(math.acos(min(1.0, float(torch.linalg.svdvals(bases[i].T @ bases[j])[0]))))

    assert max(angle(0, 1), angle(2, 3)) < 12 < min(angle(i, j) for i in (0, 1) for j in (2, 3))

    def one_client(number: int, k: int) -> None:
        hand.download(k, given[k] if given else {})
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = []
        for k in hand.clients if hand.known else ():
            members = [j for j in hand.known if j // 2 == k // 2] if k in hand.known else [k]
            images = sum(hand.weights[j] for j in members)
            given.append(hand.weighted({j: hand.weights[j] / images for j in members}))
        compare(federation, hand, number, one_client)


def test_angles_between_known_subspaces() -> None:
    lines = torch.tensor([[1.0, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0]])
    smallest, total = (PACFL(vectors=2, angle=angle).angles(lines) for angle in ("smallest", "sum"))
    assert smallest.round().tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]  # each pair has a line in common
    assert total.round().tolist() == [[0, 180, 90], [180, 0, 180], [90, 180, 0]]
    apart = torch.tensor([[0.0, 1, 9], [1, 0, 9], [9, 9, 0]], dtype=torch.float64)
    assert [len(set(clusters_below(apart, limit, "average").tolist())) for limit in (0.5, 2.0, 20.0)] == [3, 2, 1]


@PARTICIPATION
def test_fedproto(participation: dict[str, Any]) -> None:
    federation = federation_of("fedproto", True, options={"pull": 2.0}, **participation)
    hand = Known(federation)
    hand.shared = []
    sent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def one_client(number: int, k: int) -> None:
        model = hand.models[k]
        for batch in federation.engine.batches(number, k):
            model.zero_grad()
            seen: list[torch.Tensor] = []
            handle = model.head.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(given[0]))
            loss = cross_entropy(model(batch.images), batch.labels)
            handle.remove()
            if means:
                rows = [(f - means[int(y)]).square().mean() for f, y in zip(seen[0], batch.labels, strict=True)]
                loss = loss + 2.0 * sum(rows) / len(rows)
            loss.backward()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    decayed = p.grad + hand.config.weight_decay * p
                    hand.momentum[k][name] = hand.config.momentum * hand.momentum[k][name] + decayed
                    p -= hand.config.lr * hand.momentum[k][name]
        images, labels = images_of(hand, k, "train")
        features = features_of(model, images)
        sent[k] = torch.stack([features[labels == c].mean(0) for c in range(3)]), labels

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        means = {c: sum(sent[k][0][c] for k in hand.known) / len(hand.known) for c in range(3)} if hand.known else {}
        compare(federation, hand, number, one_client)
    assert federation.shared == frozenset()


def test_fedproto_refuses_labels_that_disagree_and_names_methods_that_serve() -> None:
    config = tiny_config("fedproto")
    scenario = tiny_scenario(config, (tiny_set("bars", 3), tiny_set("lines", 3, seed=1)))
    with pytest.raises(UserError, match=r"number their classes differently.*choose fedavg, fedrep, ditto or"):
        build_federation(config, scenario, torch.device("cpu"))
    aligned = tiny_config("fedproto", oracle="aligned")
    assert build_federation(aligned, scenario, torch.device("cpu")).scenario.labels_agree
    assert tiny_federation("fedproto").scenario.labels_agree
