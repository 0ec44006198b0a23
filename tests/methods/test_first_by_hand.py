"""Methods with dense, factorised and low-rank weights, each equal to a computation by hand in float64.

Weights are put together from their factors here, in a network without any parametrisation.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from factorized_fl.core.seeds import numpy_rng
from factorized_fl.methods import INSTALLED
from factorized_fl.simulate import build
from tests.methods.hand import Numbers, compare, federation_of
from tests.methods.test_by_hand import EVERYONE, SOME
from tests.methods.test_personal_by_hand import Known

pytestmark = pytest.mark.usefixtures("doubled")
BOTH = pytest.mark.parametrize(
    ("agree", "participation"), [(True, EVERYONE), (False, SOME)], ids=["shared-labels-everyone", "own-labels-some"]
)
Row = dict[int, float]
SPARSITY, MARK = 0.01, ".parametrizations.weight."
V = f"conv3.conv{MARK}0.v"  # of the layer before the classifier


def rank_one(parts: Numbers) -> torch.Tensor:
    """The weight u v^T + mu; the axes of u and v say which entries they share."""
    return parts["0.u"] * parts["0.v"] + parts["original"]


def without_mu(parts: Numbers) -> torch.Tensor:
    """The weight u v^T."""
    return parts["0.u"] * parts["original"]


def low_rank(parts: Numbers) -> torch.Tensor:
    """W1 * (W2 + 1), each of which sums T[a, b] X[a, o] Y[b, i] over a and b."""
    x1, y1, core1, x2, y2, core2 = (parts[f"original{at}"] for at in range(6))
    first, second = (torch.einsum("ao,bi,abhw->oihw", *half) for half in ((x1, y1, core1), (x2, y2, core2)))
    return first * (second + 1)


def dense(named: Numbers, weight: Callable[[Numbers], torch.Tensor]) -> Numbers:
    """All parameters of the network without parametrisations."""
    layers = {name.partition(MARK)[0] for name in named if MARK in name}
    found = {name: p for name, p in named.items() if MARK not in name}
    for layer in layers:
        parts = {name.removeprefix(layer + MARK): p for name, p in named.items() if name.startswith(layer + MARK)}
        found[f"{layer}.weight"] = weight(parts)
    return found


def train(hand: Known, plain: nn.Module, number: int, k: int, weight: Callable[[Numbers], torch.Tensor] | None) -> None:
    """Local training of client k in a plain network; the L1 penalty acts on mu."""
    model = hand.models[k]
    buffers = dict(model.named_buffers())
    for batch in hand.federation.engine.batches(number, k):
        named = dict(model.named_parameters())
        tensors = named if weight is None else dense(named, weight)
        loss = cross_entropy(functional_call(plain.train(), {**tensors, **buffers}, (batch.images,)), batch.labels)
        gradient = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        with torch.no_grad():
            for name, p in named.items():
                step = gradient[name] + hand.config.weight_decay * p
                if weight is rank_one and name.endswith(f"{MARK}original"):
                    step += SPARSITY * p.sign()
                hand.momentum[k][name] = hand.config.momentum * hand.momentum[k][name] + step
                p -= hand.config.lr * hand.momentum[k][name]


def by_images(hand: Known, k: int, number: int) -> Row:
    total = sum(hand.weights[j] for j in hand.known)
    return {j: hand.weights[j] / total for j in hand.known}


def alone(hand: Known, k: int, number: int) -> Row:
    return {k: 1.0}


def likeness_of_v(hand: Known, k: int, j: int) -> float:
    one, other = (dict(hand.models[i].named_parameters())[V].detach().flatten() for i in (k, j))
    return float(one @ other / one.norm() / other.norm())


def softmax(hand: Known, k: int, peers: set[int]) -> Row:
    raised = {j: math.exp(5.0 * (1.0 if j == k else likeness_of_v(hand, k, j))) for j in peers}
    return {j: value / sum(raised.values()) for j, value in raised.items()}


def by_v(hand: Known, k: int, number: int) -> Row:
    return softmax(hand, k, {k, *(j for j in hand.known if likeness_of_v(hand, k, j) >= 0.2)})


def by_chance(hand: Known, k: int, number: int) -> Row:
    rng = numpy_rng(hand.config.seed, "mix", number)
    order = [rng.permutation(4).tolist() for _ in hand.clients][k]
    return softmax(hand, k, {k, *[j for j in order if j in hand.known and j != k][:1]})


def by_unlikeness(hand: Known, k: int, number: int) -> Row:
    order = sorted((j for j in hand.known if j != k), key=lambda j: likeness_of_v(hand, k, j))
    return softmax(hand, k, {k, *order[:1]})


def by_statistics(hand: Known, k: int, number: int) -> Row:
    """Likeness of the images' statistics, times trust, times images."""
    prints = [hand.federation.clients.state.client(j)["fingerprint"].double() for j in hand.clients]
    size = (len(prints[0]) - 2) // 2
    means, logs = ({j: prints[j][at : at + size] for j in hand.known} for at in (0, size))

    def alike(i: int, j: int) -> float:
        if i == j or not {i, j} <= set(hand.known):
            return float(i == j)
        middle = torch.stack([logs[n] for n in hand.known]).sort(0).values[len(hand.known) // 2]
        cut = torch.stack([logs[n].minimum(middle + math.log(100)) for n in hand.known])
        scale = cut.exp().mean(0).sqrt()
        square = ((means[i] - means[j]) / scale).square().sum() + (logs[i] - logs[j]).square().sum()
        return math.exp(-max(0.0, float(square / (prints[i][-2] + prints[j][-2])) - 1))

    def trust(j: int) -> float:
        excess = {n: min(max(float(prints[n][-1]), 1.0), 1000.0) - 1 for n in hand.clients}
        pairs = [(alike(j, n), n) for n in hand.clients]
        rate = sum(share * excess[n] for share, n in pairs) / sum(share * hand.weights[n] for share, n in pairs)
        return min(1.0, (excess[j] + 0.5) / (hand.weights[j] * rate + 0.5))

    row = {j: alike(k, j) * trust(j) * hand.weights[j] if j != k else hand.weights[k] for j in hand.clients}
    return {j: value / sum(row.values()) for j, value in row.items()}


MATCHING = {"options": {"sparsity": SPARSITY, "tau": 0.2, "epsilon": 5.0}}
FACTORS = {"options": {"sparsity": SPARSITY}}
ONE_PEER = {"options": {"sparsity": SPARSITY, "epsilon": 5.0, "others": 1}}
CASES: dict[str, tuple[dict[str, Any], Callable[[Known, int, int], Row], Callable[[Numbers], torch.Tensor] | None]] = {
    "stand-alone": ({}, alone, None),
    "fedavg": ({}, by_images, None),
    "pfedpara": ({}, by_images, low_rank),
    "factorized-fedavg": (FACTORS, by_images, rank_one),
    "without-mu": (FACTORS, by_images, without_mu),
    "factorized-fl": (MATCHING, by_v, rank_one),
    "factorized-fl-beta": (MATCHING, by_v, rank_one),
    "random-matching": (ONE_PEER, by_chance, rank_one),
    "worst-matching": (ONE_PEER, by_unlikeness, rank_one),
    "mixed-layout": (MATCHING, by_v, rank_one),
    "factorized-peers": (FACTORS, by_statistics, rank_one),
}


@pytest.mark.parametrize("method", CASES)
@BOTH
def test_whole_rounds(method: str, agree: bool, participation: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = build.model_inputs
    monkeypatch.setattr(build, "model_inputs", lambda *given: inputs(*given).double())
    settings, row, weight = CASES[method]
    federation = federation_of(method, agree, **settings, **participation)
    hand = Known(federation)
    hand.shared = [name for name, _ in hand.models[0].named_parameters() if name in federation.shared]
    for model in hand.models:
        model._buffers.pop("fingerprint", None)  # it never changes
    assert (hand.shared == []) == (method == "stand-alone")

    plain = federation_of("fedavg", agree).engine.models

    def one_client(number: int, k: int) -> None:
        hand.download(k, given.get(k, {}))
        train(hand, plain[len(federation.scenario.clients[k].classes)], number, k, weight)

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = {k: hand.weighted(row(hand, k, number)) for k in hand.clients} if hand.known else {}
        compare(federation, hand, number, one_client)


def halves(hand: Known, updates: dict[int, torch.Tensor], members: list[int]) -> tuple[set[int], set[int]]:
    """Two groups by complete linkage of the cosines of updates."""
    groups = [{k} for k in members]

    def apart(one: set[int], other: set[int]) -> float:
        return max(-float(updates[i] @ updates[j] / updates[i].norm() / updates[j].norm()) for i in one for j in other)

    while len(groups) > 2:
        pairs = [(apart(a, b), at, to) for to, b in enumerate(groups) for at, a in enumerate(groups[:to])]
        _, at, to = min(pairs)
        groups[at] |= groups.pop(to)
    return groups[0], groups[1]


@BOTH
def test_clustered_fl(agree: bool, participation: dict[str, Any]) -> None:
    options = {"rule": "norms", "eps1": 1e6, "eps2": 0.0, "warm_up": 0}
    federation = federation_of("clustered-fl", agree, options=options, **participation)
    hand = Known(federation)
    clusters = [set(hand.clients)]
    begun = [hand.vector(k) for k in hand.clients]

    def one_client(number: int, k: int) -> None:
        hand.download(k, given.get(k, {}))
        begun[k] = hand.vector(k)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        updates, given = {k: hand.vector(k) - begun[k] for k in hand.clients}, {}
        for cluster in list(clusters) if hand.known else []:
            if len(members := sorted(cluster & set(hand.known))) > 2:
                _, second = halves(hand, updates, members)
                cluster -= second
                clusters.append(second)
        for k in hand.clients if hand.known else []:
            (members,) = [sorted(cluster & set(hand.known)) for cluster in clusters if k in cluster]
            given[k] = hand.weighted({j: 1 / len(members) for j in members} if members else {k: 1.0})
        compare(federation, hand, number, one_client)
    assert len(clusters) > 1


@BOTH
@pytest.mark.parametrize("method", ["fedprox", "per-fedavg"])
def test_fedprox_and_per_fedavg(method: str, agree: bool, participation: dict[str, Any]) -> None:
    options = {"proximal": 0.3} if method == "fedprox" else {"inner": 0.2}
    federation = federation_of(method, agree, options=options, **participation)
    hand = Known(federation)

    def one_client(number: int, k: int) -> None:
        hand.download(k, given)
        model, begun = hand.models[k], hand.numbers(hand.models[k], hand.shared)
        if method == "fedprox":
            more = lambda name, p: 0.3 * (p - begun[name]) if name in begun else 0.0  # noqa: E731
            hand.train(number, k, model, hand.momentum[k], more=more)
            return
        batches = list(federation.engine.batches(number, k))
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            model.zero_grad()
            cross_entropy(model(first.images), first.labels).backward()
            ahead = {name: (p.detach() - 0.2 * p.grad).requires_grad_() for name, p in model.named_parameters()}
            out = functional_call(model, {**ahead, **dict(model.named_buffers())}, (second.images,))
            gradient = torch.autograd.grad(cross_entropy(out, second.labels), list(ahead.values()))
            with torch.no_grad():
                for (name, p), slope in zip(model.named_parameters(), gradient, strict=True):
                    step = slope + hand.config.weight_decay * p
                    hand.momentum[k][name] = hand.config.momentum * hand.momentum[k][name] + step
                    p -= hand.config.lr * hand.momentum[k][name]

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        weights = hand.weights if method == "fedprox" else [1.0] * 4
        total = sum(weights[k] for k in hand.known)
        given = hand.weighted({k: weights[k] / total for k in hand.known}) if hand.known else {}
        compare(federation, hand, number, one_client)


@pytest.mark.parametrize("statistics", ["sender", "own"])
@BOTH
def test_fedfomo(agree: bool, participation: dict[str, Any], statistics: str) -> None:
    """With the running statistics of the sender, these are mixed and sent like all other tensors."""
    federation = federation_of("fedfomo", agree, options={"explore": 0.0, "statistics": statistics}, **participation)
    hand = Known(federation)

    def sent(k: int) -> Numbers:
        buffers = {n: t.clone() for n, t in hand.models[k].named_buffers() if n.endswith(("mean", "var"))}
        return hand.numbers(hand.models[k], hand.shared) | (buffers if statistics == "sender" else {})

    start = [sent(k) for k in hand.clients]
    outcomes: set[int] = set()

    def loss(k: int, shared: Numbers) -> float:
        scenario, client = federation.scenario, federation.scenario.clients[k]
        images = ((scenario.images[client.holdout].float() / 255 - 0.5) / 0.25).double()
        with torch.no_grad():
            tensors = {**dict(hand.models[k].named_buffers()), **dict(hand.models[k].named_parameters()), **shared}
            out = functional_call(copy.deepcopy(hand.models[k]).eval(), tensors, (images,))
            return float(cross_entropy(out, client.labelling[scenario.labels[client.holdout]]))

    def mixed(k: int) -> Numbers:
        """The weighted mean of the models that lower the loss of client k; where none does, what it began with last."""
        before, gains = loss(k, start[k]), {}
        for n in hand.known:
            theirs = sent(n)
            square = sum(float((theirs[name] - start[k][name]).square().sum()) for name in hand.shared)
            gains[n] = max(0.0, before - loss(k, theirs)) / (math.sqrt(square) + 1e-5)
        outcomes.add(sum(gain > 0 for gain in gains.values()))
        if not any(gains.values()):
            return start[k] if k in hand.known else {}
        found, total = {n: sent(n) for n in gains}, sum(gains.values())
        return {name: sum(gain / total * found[n][name] for n, gain in gains.items()) for name in start[k]}

    def one_client(number: int, k: int) -> None:
        hand.models[k].load_state_dict({**hand.models[k].state_dict(), **given.get(k, {})})
        start[k] = sent(k)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        hand.begin()
        given = {k: mixed(k) for k in hand.participants(number)} if hand.known else {}
        compare(federation, hand, number, one_client)
    assert len(outcomes) > 1


def test_every_method_has_a_computation_by_hand() -> None:
    """Of whole rounds, in one of four files; each of these tests runs all methods that it names."""
    files = ("test_by_hand", "test_first_by_hand", "test_further_by_hand", "test_personal_by_hand")
    texts = "".join(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in files)
    assert [method for method in INSTALLED if f'"{method}"' not in texts and f'"{method} by' not in texts] == []
