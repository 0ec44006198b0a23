"""Methods of other papers, each equal to a computation by hand in float64."""

import copy
from itertools import islice
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from factorized_fl.core.views import Phase
from tests.methods.hand import Hand, Numbers, assert_equal, compare, correct_answers, federation_of

AGREE = pytest.mark.parametrize("agree", [True, False], ids=["shared-labels", "own-labels"])
EVERYONE = {"rounds": 3}
# Rounds 1 to 6 have 2, 0, 1, 2, 2 and 0 clients that train, of 2 sampled ones: a round without any comes before others.
SOME = {"rounds": 6, "fraction": 0.5, "dropout": 0.4, "seed": 1}
PARTICIPATION = pytest.mark.parametrize("participation", [EVERYONE, SOME], ids=["everyone", "some"])


def test_the_partial_runs_have_rounds_of_every_kind() -> None:
    hand = Hand(federation_of("fedavgm", True, **SOME))
    present = [hand.participants(number) for number in range(1, 7)]
    counts = [len(clients) for clients in present]
    assert {0, 1, 2} <= set(counts), counts
    first_empty = counts.index(0)
    assert 0 < first_empty < 5, counts  # there are rounds before it and after it
    assert set(range(4)) == {k for clients in present for k in clients}


@pytest.mark.usefixtures("doubled")
@PARTICIPATION
@AGREE
def test_ditto_equals_a_computation_by_hand(agree: bool, participation: dict[str, Any]) -> None:
    pull = 0.3
    federation = federation_of("ditto", agree, options={"pull": pull, "personal_epochs": 1}, **participation)
    hand = Hand(federation)
    personal = [hand.module(k) for k in hand.clients]
    momenta = [hand.zeros(model) for model in personal]
    second = Phase("personal", epochs=1)

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        begun = hand.numbers(hand.models[k], hand.shared)
        hand.train(number, k, hand.models[k], hand.momentum[k])
        more = lambda name, p: pull * (p - begun[name]) if name in begun else 0.0  # noqa: E731
        hand.train(number, k, personal[k], momenta[k], phase=second, index=1, more=more)

    for number in range(1, participation["rounds"] + 1):
        hand.average(hand.weights)
        records = compare(federation, hand, number, one_client)
        for k in hand.clients:
            assert_equal(federation.clients.models["personal"].client(k), personal[k], f"personal model of {k}")
        tested = {record["client"]: record["correct"] for record in records if record["correct"] is not None}
        assert tested == {k: correct_answers(hand, k, personal[k]) for k in tested}
    assert any(
        not torch.equal(p, q) for p, q in zip(personal[0].parameters(), hand.models[0].parameters(), strict=True)
    )


@pytest.mark.usefixtures("doubled")
@PARTICIPATION
@AGREE
def test_fedrep_equals_a_computation_by_hand(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("fedrep", agree, options={"head_epochs": 2, "body_epochs": 1}, **participation)
    hand = Hand(federation)
    hand.shared = [name for name in hand.shared if not name.startswith("head.")]
    hand.server = hand.numbers(hand.models[0], hand.shared)
    phases = Phase("head", epochs=2), Phase("body", epochs=1)

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        model, momentum = hand.models[k], hand.momentum[k]
        hand.train(number, k, model, momentum, phase=phases[0], only=lambda name: name.startswith("head."))
        hand.train(number, k, model, momentum, phase=phases[1], index=1, only=lambda name: not name.startswith("head."))

    for number in range(1, participation["rounds"] + 1):
        hand.average([1.0] * 4)
        compare(federation, hand, number, one_client)
    assert federation.shared == set(hand.shared)


@pytest.mark.usefixtures("doubled")
@PARTICIPATION
@AGREE
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_equals_a_computation_by_hand(momentum: float, agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("scaffold", agree, momentum=momentum, options={"server_lr": 0.8}, **participation)
    hand = Hand(federation)
    control = {name: torch.zeros_like(t) for name, t in hand.server.items()}
    controls = [{name: torch.zeros_like(t) for name, t in control.items()} for _ in hand.clients]
    changes: dict[int, Numbers] = {}

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        own = controls[k]
        more = lambda name, p: control[name] - own[name] if name in own else 0.0  # noqa: E731
        steps = hand.train(number, k, hand.models[k], hand.momentum[k], more=more)
        after = hand.numbers(hand.models[k], hand.shared)
        new = {
            name: own[name] - control[name] + (hand.server[name] - after[name]) / (steps * hand.config.lr)
            for name in own
        }
        changes[k] = {name: new[name] - own[name] for name in new}
        controls[k] = new

    for number in range(1, participation["rounds"] + 1):
        if here := hand.updated:
            hand.server = {
                n: x + 0.8 * sum(dict(hand.models[k].named_parameters())[n].detach() - x for k in here) / len(here)
                for n, x in hand.server.items()
            }
            # |S| / N times the mean over S is the sum over N.
            control = {n: c + sum(changes[k][n] for k in here) / 4 for n, c in control.items()}
        compare(federation, hand, number, one_client)
        for k in hand.clients:
            assert_equal(federation.clients.kept.client(k), controls[k], f"control of {k}")
    assert max(float(c.abs().max()) for c in control.values()) > 1e-3


@pytest.mark.usefixtures("doubled")
@PARTICIPATION
@AGREE
def test_fedavgm_equals_a_computation_by_hand(agree: bool, participation: dict[str, Any]) -> None:
    federation = federation_of("fedavgm", agree, options={"beta": 0.7, "server_lr": 0.9}, **participation)
    hand = Hand(federation)
    momentum = {name: torch.zeros_like(t) for name, t in hand.server.items()}

    def one_client(number: int, k: int) -> None:
        hand.download(k, hand.server)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        if hand.updated:
            for name, w in hand.server.items():
                momentum[name] = 0.7 * momentum[name] + w - hand.mean(hand.updated, name, hand.weights)
            hand.server = {name: w - 0.9 * momentum[name] for name, w in hand.server.items()}
        compare(federation, hand, number, one_client)


@pytest.mark.usefixtures("doubled")
@PARTICIPATION
@AGREE
def test_fedala_equals_a_computation_by_hand(agree: bool, participation: dict[str, Any]) -> None:
    options = {"top": 2, "step": 4.0, "sample": 2, "first_passes": 3, "tolerance": 1e-6}
    federation = federation_of("fedala", agree, options=options, **participation)
    hand = Hand(federation)
    top = ("conv3.norm.", "head.") if agree else ("conv3.conv.", "conv3.norm.")
    names = [name for name in hand.shared if name.startswith(top)]
    assert len(names) in (3, 4)
    weights = [{name: torch.ones_like(hand.server[name]) for name in names} for _ in hand.clients]
    learned: set[int] = set()
    down = False  # whether the server has received anything to send

    def learn(number: int, k: int) -> None:
        own, given = hand.numbers(hand.models[k], hand.shared), hand.server
        for turn in range(1 if k in learned else 3):
            before = {name: weight.clone() for name, weight in weights[k].items()}
            for batch in islice(hand.federation.engine.batches(number, k), 2):
                trial = copy.deepcopy(hand.models[k])
                with torch.no_grad():
                    for name, p in trial.named_parameters():
                        if name in names:
                            p.copy_((1 - weights[k][name]) * own[name] + weights[k][name] * given[name])
                        elif name in given:
                            p.copy_(given[name])
                cross_entropy(trial(batch.images), batch.labels).backward()
                for name, p in trial.named_parameters():
                    if name in names:
                        moved = weights[k][name] - 4.0 * p.grad * (given[name] - own[name])
                        weights[k][name] = moved.clamp(0, 1)
            change = max(float((weights[k][name] - before[name]).abs().max()) for name in names)
            if change <= 1e-6:
                assert turn < 2 or k in learned
                break
        learned.add(k)
        mixed = {n: (1 - weights[k][n]) * own[n] + weights[k][n] * given[n] if n in names else given[n] for n in given}
        hand.download(k, mixed)

    def one_client(number: int, k: int) -> None:
        if down:
            learn(number, k)
        hand.train(number, k, hand.models[k], hand.momentum[k])

    for number in range(1, participation["rounds"] + 1):
        down = down or bool(hand.updated)
        hand.average(hand.weights)
        compare(federation, hand, number, one_client)
        for k in hand.clients:
            assert_equal(federation.clients.kept.client(k), weights[k], f"weights of {k}")
    found = torch.cat([weight.flatten() for own in weights for weight in own.values()])
    assert ((found > 0) & (found < 1)).any()
