"""The interface of a method: extra payloads, kept tensors and further models are resumed and sent between sites."""

from pathlib import Path
from typing import Any

import pytest
import torch

import factorized_fl as ffl
from factorized_fl.methods import METHODS
from factorized_fl.nn import build_model
from factorized_fl.silo.kits import _largest as largest_of
from factorized_fl.simulate.build import Federation, build_federation
from factorized_fl.simulate.rounds import run_round
from factorized_fl.simulate.run import Stopped, run_federation
from factorized_fl.simulate.scenario import build_scenario_of
from tests.methods.hand import Numbers, federation_of
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio
from tests.tiny import tiny_config

FILES = ("ditto", "fedrep", "scaffold", "fedavgm", "fedala")
FURTHER = ("mr-mtl", "pfedme", "fedamp", "fedcac", "fedap")


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
    [*((name, {}) for name in FILES), *((name, {"fraction": 0.67, "rounds": 4}) for name in (*FILES, *FURTHER))],
    ids=[*FILES, *(f"{name}-partly" for name in (*FILES, *FURTHER))],
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


def test_a_hook_sees_the_clients_own_tensors_and_the_download_in_the_models_order(monkeypatch) -> None:
    """Even if the method keeps where the last round began, and if the download arrives in another order."""
    seen: list[tuple[Numbers, list[str]]] = []

    class Watching(METHODS["fedavg"]):  # type: ignore[misc]
        name = "watching"
        keeps_start = True
        personal = True

        def receive(self, local: ffl.Local, given: Numbers) -> Numbers:
            seen.append((local.tensors, list(given)))
            return given

    monkeypatch.setitem(METHODS, "watching", Watching)  # is removed again after the test
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
