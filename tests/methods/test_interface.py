"""Five methods of other papers against the public interface: Ditto, FedRep, SCAFFOLD, FedAvgM and FedALA.

Each equals a computation by hand in float64: plain PyTorch loops over models of their own. These loops take from the
package only the images of each batch and the participants of each round.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import factorized_fl as ffl
from factorized_fl.engine.reference import ReferenceEngine
from factorized_fl.methods import METHODS
from factorized_fl.methods.loading import load_methods
from factorized_fl.nn import build_model
from factorized_fl.silo.kits import _largest as largest_of
from factorized_fl.simulate import build
from factorized_fl.simulate.build import Federation, build_federation, build_scenario_of
from factorized_fl.simulate.rounds import run_round, sampling_of
from factorized_fl.simulate.run import Stopped, run_federation
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio
from tests.tiny import tiny_config, tiny_scenario, tiny_set

FOLDER = Path(__file__).parent / "interface"
FILES = ("ditto", "fedrep", "scaffold", "fedavgm", "fedala")
Numbers = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The five methods, loaded as `ffl --load` does it and removed after the test."""
    before = dict(METHODS)
    for name in FILES:
        load_methods(FOLDER / f"{name}.py")
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and images in float64, so that a comparison sees the arithmetic and not the rounding."""
    ready = ReferenceEngine._ready
    monkeypatch.setattr(build, "build_model", lambda *given, **named: build_model(*given, **named).double())
    monkeypatch.setattr(ReferenceEngine, "_ready", lambda engine, pixels: ready(engine, pixels).double())


def federation_of(method: str, agree: bool, **settings: Any) -> Federation:
    """Four clients over one domain whose labels agree, or over two domains whose labels do not."""
    given = {"weight_decay": 1e-2, "momentum": 0.5, "epochs": 2, "permuted": not agree, **settings}
    config = tiny_config(method, **given)
    domains = (tiny_set("bars", 3, 90),) if agree else None
    scenario = tiny_scenario(config, domains)
    assert scenario.labels_agree == agree
    return build_federation(config, scenario, torch.device("cpu"))


def test_each_method_is_one_file_of_at_most_80_lines() -> None:
    for name in FILES:
        text = (FOLDER / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 80, name
        assert "import factorized_fl as ffl" in text


# -- by hand


class Hand:
    """Every client's own module and momentum, and SGD as the configuration says."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.config = federation, federation.config
        self.clients = range(self.config.clients)
        self.models = [self.module(k) for k in self.clients]
        self.momentum = [self.zeros(model) for model in self.models]
        self.weights = [float(len(client.train)) for client in federation.scenario.clients]
        agree = federation.scenario.labels_agree
        self.shared = [n for n, _ in self.models[0].named_parameters() if agree or not n.startswith("head.")]
        self.updated: list[int] = []  # the clients that trained in the round before
        self.server = self.numbers(self.models[0], self.shared)

    def module(self, k: int) -> nn.Module:
        """A copy of a client's model as it is now."""
        model = copy.deepcopy(self.federation.engine.models[len(self.federation.scenario.clients[k].classes)])
        model.load_state_dict({name: t.clone() for name, t in self.federation.clients.state.client(k).items()})
        return model.train()

    @staticmethod
    def zeros(model: nn.Module) -> Numbers:
        return {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    @staticmethod
    def numbers(model: nn.Module, names: list[str]) -> Numbers:
        return {name: p.detach().clone() for name, p in model.named_parameters() if name in names}

    def participants(self, number: int) -> list[int]:
        """The clients that train in a round; the draws are the run's own."""
        return sampling_of(self.federation).draw(number)[1]

    @torch.no_grad()
    def download(self, k: int, given: Numbers) -> None:
        for name, p in self.models[k].named_parameters():
            if name in given:
                p.copy_(given[name])

    def train(
        self,
        number: int,
        k: int,
        model: nn.Module,
        momentum: Numbers,
        *,
        phase: ffl.Phase | None = None,
        index: int = 0,
        only: Callable[[str], bool] = lambda name: True,
        more: Callable[[str, torch.Tensor], Any] = lambda name, p: 0.0,
    ) -> int:
        """SGD with momentum and weight decay; `more` is added to the gradient. Returns the number of steps."""
        steps = 0
        for batch in self.federation.engine.batches(number, k, phase, index):
            model.zero_grad()
            cross_entropy(model(batch.images), batch.labels).backward()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if only(name):
                        step = p.grad + more(name, p) + self.config.weight_decay * p
                        momentum[name] = self.config.momentum * momentum[name] + step
                        p -= self.config.lr * momentum[name]
            steps += 1
        return steps

    def mean(self, clients: list[int], name: str, weights: list[float]) -> torch.Tensor:
        """The weighted mean of a parameter over the clients' models."""
        total = sum(weights[k] for k in clients)
        return sum(weights[k] / total * dict(self.models[k].named_parameters())[name].detach() for k in clients)

    def average(self, weights: list[float]) -> None:
        """The server's model becomes the mean of the last round's clients, if there were any."""
        if self.updated:
            self.server = {name: self.mean(self.updated, name, weights) for name in self.server}


def correct_answers(hand: Hand, k: int, model: nn.Module) -> int:
    scenario, client = hand.federation.scenario, hand.federation.scenario.clients[k]
    images = ((scenario.images[client.test].float() / 255 - 0.5) / 0.25).double()
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(images)
    return int((logits.argmax(1) == client.labelling[scenario.labels[client.test]]).sum())


def assert_equal(got: Numbers, wanted: nn.Module | Numbers, what: str) -> None:
    expected = wanted.state_dict() if isinstance(wanted, nn.Module) else wanted
    assert got.keys() >= expected.keys()
    for name, tensor in expected.items():
        assert tensor.dtype in (torch.float64, torch.int64)
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-12, msg=f"{what}: {name}")


def compare(federation: Federation, hand: Hand, number: int, one_client: Callable[[int, int], None]) -> list[dict]:
    """Runs a round both ways; `one_client` trains client k by hand. Returns the round's records."""
    records, _ = run_round(federation, number)
    hand.updated = hand.participants(number)
    for k in hand.updated:
        one_client(number, k)
    for k in hand.clients:
        assert_equal(federation.clients.state.client(k), hand.models[k], f"round {number}, client {k}")
        momentum = federation.clients.momentum.client(k)
        assert_equal(momentum, {n: t.detach() for n, t in hand.momentum[k].items()}, f"momentum of client {k}")
    return records


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
    second = ffl.Phase("personal", epochs=1)

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
    phases = ffl.Phase("head", epochs=2), ffl.Phase("body", epochs=1)

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


# -- killed and resumed


class StopAfter:
    """An observer that stops a run at the end of a round, or in the middle of it as Ctrl-C does."""

    def __init__(self, number: int, middle: bool) -> None:
        self.number, self.middle = number, middle

    def started(self, federation: Federation, done: int) -> None: ...

    def client_done(self, round_number: int, client: int) -> None:
        if self.middle and round_number == self.number:
            raise KeyboardInterrupt

    def round_done(self, round_number: int, records: Any) -> None:
        if not self.middle and round_number == self.number:
            raise Stopped


def written(path: Path) -> dict[str, bytes]:
    names = [found.relative_to(path) for found in path.rglob("*") if found.is_file()]
    return {str(name): (path / name).read_bytes() for name in names if name.name not in UNEQUAL}


UNEQUAL = {"environment.json", "timing.jsonl"}
STOPS = [(1, False), (2, False), (2, True), (3, True)]


@pytest.mark.parametrize("method", FILES)
def test_a_stopped_and_resumed_run_is_identical_to_the_unbroken_one(method: str, images: Path, tmp_path: Path) -> None:
    config = tiny_config(method, rounds=4, fraction=0.75, dropout=0.2)
    run_federation(config, tmp_path / "whole", data=images)
    wanted = written(tmp_path / "whole")
    assert "checkpoint.safetensors" in wanted
    for number, middle in STOPS:
        out = tmp_path / f"stopped-{number}-{middle}"
        with pytest.raises(KeyboardInterrupt if middle else Stopped):
            run_federation(config, out, data=images, observers=[StopAfter(number, middle)])
        run_federation(config, out, data=images, resume=True)
        assert written(out) == wanted, (number, middle)


# -- between sites


@pytest.mark.parametrize(
    ("method", "settings"),
    [*((name, {}) for name in FILES), *((name, {"fraction": 0.67, "rounds": 4}) for name in FILES)],
    ids=[*FILES, *(f"{name}-partly" for name in FILES)],
)
def test_sites_give_what_one_process_gives(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    data = write_trio(tmp_path / "data")
    config = trio_config(method, **settings)
    kits = kits_of(tmp_path, config)
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    assert parties.run()
    federation = build_federation(config, build_scenario_of(config, data), torch.device("cpu"))
    wanted = [record for number in range(1, config.rounds + 1) for record in run_round(federation, number)[0]]
    assert [record["down_bytes"] for record in wanted if record["round"] > 1]
    theirs = federation.clients
    for k, site in enumerate(sites.values()):
        own = site.federation.clients
        pairs = [(own.state, theirs.state), (own.momentum, theirs.momentum), (own.kept, theirs.kept)]
        pairs += [(own.models[name], theirs.models[name]) for name in own.models]
        pairs += [(own.momenta[name], theirs.momenta[name]) for name in own.momenta]
        for one, all_of_them in pairs:
            mine, there = one.client(0), all_of_them.client(k)
            assert mine.keys() == there.keys()
            for name, tensor in mine.items():
                torch.testing.assert_close(tensor, there[name], rtol=0, atol=1e-6, msg=name)
    server = parties.coordinator.memory.server
    assert server.state.keys() == federation.server.state.keys()
    for name, tensor in federation.server.state.items():
        torch.testing.assert_close(server.state[name], tensor, rtol=0, atol=1e-6, msg=name)
    got = parties.coordinator.directory.metrics()
    names = ("round", "client", "correct", "steps", "up_bytes", "down_bytes", "up_parameters", "down_parameters")
    assert [[record[name] for name in names] for record in got] == [
        [record[name] for name in names] for record in wanted
    ]


def test_the_limit_of_a_message_has_room_for_extra_payloads() -> None:
    fedavg, scaffold = (largest_of(trio_config(name, width=1.0)) for name in ("fedavg", "scaffold"))
    model = build_model("cnn", 2, channels=1)
    travels = sum(4 * p.numel() for name, p in model.named_parameters() if not name.startswith("head."))
    assert scaffold >= fedavg + travels


def test_a_hook_sees_the_clients_own_tensors_and_the_download_in_the_models_order() -> None:
    """Even if the method keeps where the last round began, and if the download arrives in another order."""
    seen: list[tuple[Numbers, list[str]]] = []

    class Watching(METHODS["fedavg"]):  # type: ignore[misc]
        name = "watching"
        keeps_start = True
        personal = True

        def receive(self, local: ffl.Local, given: Numbers) -> Numbers:
            seen.append((local.tensors, list(given)))
            return given

    ffl.register(Watching)
    federation = federation_of("watching", True)
    run_round(federation, 1)
    own = {name: tensor.clone() for name, tensor in federation.clients.state.client(0).items()}
    downloads = federation.server.prepare(2, range(4), lambda client, tensors: [])
    items = list(downloads.items())
    federation.clients.receive(2, items[::-1], {0: 0}, federation.engine)
    ((tensors, names),) = seen
    assert names == [name for name in federation.clients.state.common if name in federation.shared]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in own.items())
    for name, rows in items:
        assert torch.equal(federation.clients.state.client(0)[name], rows[0])
