"""Personalised methods of other papers, each equal to a computation by hand in float64."""

import copy
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from factorized_fl.core.errors import UserError
from factorized_fl.simulate.rounds import run_round
from tests.methods.hand import Hand, Numbers, assert_equal, compare, correct_answers, federation_of
from tests.methods.test_by_hand import AGREE, PARTICIPATION
from tests.tiny import tiny_federation

pytestmark = pytest.mark.usefixtures("doubled")
EQUAL = [1.0] * 4


class Known(Hand):
    """Remembers which clients the server has ever received from."""

    def __init__(self, federation: Any) -> None:
        super().__init__(federation)
        self.known: list[int] = []

    def begin(self) -> None:
        """Called at the start of a round."""
        self.known = sorted({*self.known, *self.updated})

    def vector(self, k: int) -> torch.Tensor:
        return torch.cat([t.flatten() for t in self.numbers(self.models[k], self.shared).values()])

    def weighted(self, row: dict[int, float]) -> Numbers:
        """The sum of the clients' shared parameters with these weights."""
        own = {k: self.numbers(self.models[k], self.shared) for k in row}
        return {name: sum(weight * own[k][name] for k, weight in row.items()) for name in self.shared}


@pytest.mark.parametrize("method", ["fedper", "fedbn"])
@PARTICIPATION
@AGREE
def test_fedper_and_fedbn_are_averages_of_a_part(method: str, agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of(method, agree, **participation)
    hand = Known(federation)
    away = "head." if method == "fedper" else ".norm."
    hand.shared = [name for name in hand.shared if away not in name]
    assert federation.shared == set(hand.shared)

    def one_client(number: int, k: int) -> None:
        hand.download(k, given)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        images = sum(hand.weights[k] for k in hand.known)
        given = hand.weighted({k: hand.weights[k] / images for k in hand.known}) if hand.known else {}
        compare(federation, hand, number, one_client)


def test_fedper_is_fedavg_where_labels_disagree() -> None:
    found = [federation_of(method, False) for method in ("fedper", "fedavg")]
    for number in (1, 2, 3):
        for federation in found:
            run_round(federation, number)
    one, two = (federation.tensors for federation in found)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def attention(hand: Known, k: int, others: list[int], cosine: bool) -> dict[int, float]:
    """The weights of FedAMP, by the formulas of the paper."""
    own = hand.vector(k)
    if not others:
        return {k: 1.0}
    if cosine:
        raised = {j: float(torch.exp(3.0 * own @ hand.vector(j) / own.norm() / hand.vector(j).norm())) for j in others}
        row = {j: 0.6 * value / sum(raised.values()) for j, value in raised.items()}
    else:
        row = {j: 0.5 * float(torch.exp(-(own - hand.vector(j)).square().sum() / 2.0)) / 2.0 for j in others}
    assert sum(row.values()) < 1
    return {**row, k: 1 - sum(row.values())}


@pytest.mark.parametrize("method", ["mr-mtl", "fedamp by cosine", "fedamp by distance"])
@PARTICIPATION
@AGREE
def test_pulls_towards_a_downloaded_model(method: str, agree: bool, participation: dict[str, Any]) -> None:
    name, _, weights = method.partition(" by ")
    options = {"pull": 0.3}
    if weights == "cosine":
        options |= {"weights": "cosine", "sigma": 3.0, "own": 0.4}
    if weights == "distance":
        options |= {"weights": "distance", "sigma": 2.0, "step": 0.5}
    federation = federation_of(name, agree, options=options, **participation)
    hand = Known(federation)
    towards = [dict(hand.server) for _ in hand.clients]

    def one_client(number: int, k: int) -> None:
        if given:
            towards[k] = given[k]
        more = lambda name, p: 0.3 * (p - towards[k][name]) if name in hand.shared else 0.0  # noqa: E731
        hand.train(number, k, hand.models[k], hand.momentum[k], more=more)

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = []
        if hand.known and name == "mr-mtl":
            given = [hand.weighted({k: 1 / len(hand.known) for k in hand.known})] * 4
        elif hand.known:
            found = [[j for j in hand.known if j != k] if k in hand.known else [] for k in hand.clients]
            given = [hand.weighted(attention(hand, k, found[k], weights == "cosine")) for k in hand.clients]
        compare(federation, hand, number, one_client)
        for k in hand.clients:
            assert_equal(federation.clients.kept.client(k), towards[k], f"what client {k} is pulled towards")


@PARTICIPATION
@AGREE
def test_pfedme(agree: bool, participation: dict[str, Any]) -> None:
    options = {"pull": 2.0, "inner_steps": 3, "inner_lr": 0.1, "beta": 0.7}
    federation = federation_of("pfedme", agree, options=options, **participation)
    hand = Hand(federation)
    personal = [hand.module(k) for k in hand.clients]

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        model = hand.models[k]
        for batch in federation.engine.batches(number, k):
            theta = copy.deepcopy(model)
            for _ in range(3):
                theta.zero_grad()
                cross_entropy(theta(batch.images), batch.labels).backward()
                with torch.no_grad():
                    for p, w in zip(theta.parameters(), model.parameters(), strict=True):
                        p -= 0.1 * (p.grad + 2.0 * (p - w))
            with torch.no_grad():
                for (name, w), p in zip(model.named_parameters(), theta.parameters(), strict=True):
                    step = 2.0 * (w - p) + hand.config.weight_decay * w
                    hand.momentum[k][name] = hand.config.momentum * hand.momentum[k][name] + step
                    w -= hand.config.lr * hand.momentum[k][name]
                for here, there in zip(model.buffers(), theta.buffers(), strict=True):
                    here.copy_(there)
            personal[k] = theta

    for number in range(1, participation["rounds"] + 1):
        if hand.updated:
            hand.server = {n: 0.3 * w + 0.7 * hand.mean(hand.updated, n, EQUAL) for n, w in hand.server.items()}
        records = compare(federation, hand, number, one_client)
        for k in hand.clients:
            wanted = {name: p.detach() for name, p in personal[k].named_parameters()}
            assert_equal(federation.clients.kept.client(k), wanted, f"personal model of {k}")
        tested = {record["client"]: record["correct"] for record in records if record["correct"] is not None}
        assert tested == {k: correct_answers(hand, k, personal[k]) for k in tested}


@PARTICIPATION
@AGREE
def test_fedcac(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("fedcac", agree, options={"critical": 0.3, "rounds_together": 9}, **participation)
    hand = Known(federation)
    marks = [{name: torch.zeros_like(t) for name, t in hand.server.items()} for _ in hand.clients]

    def one_client(number: int, k: int) -> None:
        hand.download(k, given[k] if given else {})
        before = hand.numbers(hand.models[k], hand.shared)
        hand.train(number, k, hand.models[k], hand.momentum[k])
        for name, after in hand.numbers(hand.models[k], hand.shared).items():
            sensitivity = ((after - before[name]) * after).abs()
            order = sensitivity.flatten().argsort(descending=True)[: int(0.3 * after.numel())]
            marks[k][name] = torch.zeros_like(after).flatten().index_fill(0, order, 1.0).view_as(after)

    def overlap(i: int, j: int) -> float:
        one, two = (torch.cat([t.flatten() for t in marks[k].values()]) for k in (i, j))
        return 1 - float((one - two).abs().sum() / (2 * one.sum()))

    sizes = set()
    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = []
        if known := hand.known:
            found = {(i, j): overlap(i, j) for i in known for j in known if i != j}
            mean, most = (sum(found.values()) / len(found), max(found.values())) if found else (0.0, 0.0)
            images = sum(hand.weights[k] for k in known)
            everyone = hand.weighted({k: hand.weights[k] / images for k in known})
            for i in hand.clients:
                peers = [j for j in known if (i, j) in found and found[i, j] >= mean + number / 9 * (most - mean)]
                sizes.add(len(peers))
                own = hand.weighted({j: 1 / (len(peers) + 1) for j in (*peers, i)})
                given.append({n: m * own[n] + (1 - m) * everyone[n] for n, m in marks[i].items()})
        compare(federation, hand, number, one_client)
    assert len(sizes) > 1


@PARTICIPATION
@AGREE
def test_fedap(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("fedap", agree, options={"own": 0.3, "warm_up": 1}, **participation)
    hand = Known(federation)
    hand.shared = [name for name in hand.shared if ".norm." not in name]
    statistics: dict[int, dict[str, torch.Tensor]] = {}

    def one_client(number: int, k: int) -> None:
        hand.download(k, given[k] if given else {})
        hand.train(number, k, hand.models[k], hand.momentum[k])

    def distance(i: int, j: int) -> float:
        total = 0.0
        for name in statistics[i]:
            if name.endswith("running_mean"):
                other = name.replace("running_mean", "running_var")
                square = (statistics[i][name] - statistics[j][name]).square().sum()
                square += (statistics[i][other].sqrt() - statistics[j][other].sqrt()).square().sum()
                total += float(square.sqrt())
        return total

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = []
        if known := hand.known:
            if number > 1:
                for k in known:
                    state = {name: t.clone() for name, t in hand.models[k].state_dict().items() if ".running_" in name}
                    statistics.setdefault(k, state)
            images = sum(hand.weights[k] for k in known)
            for k in hand.clients:
                row = {j: hand.weights[j] / images for j in known}
                if k in statistics:
                    inverse = {j: 1 / distance(k, j) for j in statistics if j != k}
                    row = {j: 0.7 * value / sum(inverse.values()) for j, value in inverse.items()}
                    row[k] = 1 - sum(row.values())
                given.append(hand.weighted(row))
        compare(federation, hand, number, one_client)
    assert len(statistics) == 4


def test_fedap_needs_batch_statistics() -> None:
    with pytest.raises(UserError, match="the network has no BatchNorm: use fedavg"):
        tiny_federation("fedap", model="tests.own.nets:GroupNormCNN")
