"""Three hospitals, three folders of images, three label schemes, three models: the whole way, as real processes.

aster has four kinds of digits, cedar all ten, birch six drawn shapes; each calls its classes by its own names.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from factorized_fl import api
from factorized_fl.federation.rundir import RunDirectory
from factorized_fl.methods import METHODS
from tests.network.parties import NAMES
from tests.network.processes import Party, ffl, wait_for, write_hospitals, write_sites

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = pytest.mark.xdist_group("network")


@dataclass
class Finished:
    """A federation that has run to its end."""

    root: Path
    parties: dict[str, Party]
    listened: dict[str, set[tuple[str, int]]]
    seen_status: str

    def run(self, party: str) -> RunDirectory:
        return RunDirectory(self.root / "kits" / party / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    root = tmp_path_factory.mktemp("hospitals")
    data = write_hospitals(root / "data")
    sites = write_sites(root / "sites.toml")
    ffl("federation", "new", sites, "--out", root / "kits")
    parties = {"coordinator": Party(root / "kits" / "coordinator")}
    parties |= {name: Party(root / "kits" / name, "--data", data / name, "--device", "cpu") for name in NAMES}
    parties["aster"].arguments.append("--report-accuracy")
    listened: dict[str, set[tuple[str, int]]] = {name: set() for name in parties}
    try:
        for party in parties.values():
            party.start()
        status = ""

        def ended() -> bool:
            nonlocal status
            for name, party in parties.items():
                listened[name] |= party.listening()
            return all(party.process is not None and party.process.poll() is not None for party in parties.values())

        wait_for(lambda: parties["coordinator"].kit.status.exists(), "the coordinator's first status")
        status = ffl("federation", "status", root / "kits" / "coordinator")
        wait_for(ended, "the end of the federation", 200)
        yield Finished(root, parties, listened, status)
    finally:
        for party in parties.values():
            party.end()


def test_all_rounds_are_done_and_every_site_has_its_model(finished: Finished) -> None:
    for name, party in finished.parties.items():
        assert party.wait() == 0, party.console
        assert finished.run(name).checkpoint_round() == 3
    for name in NAMES:
        card = (finished.root / "kits" / name / "model" / "README.md").read_text()
        right = float(re.search(r"\*\*([\d.]+)%\*\* right", card)[1])
        alone = float(re.search(r"trained alone, .*: ([\d.]+)%", card)[1])
        print(f"{name}: {right:.2f}% in the federation, {alone:.2f}% alone")
        assert right == pytest.approx(100 * finished.run(name).summary()["accuracy_mean"], abs=0.01)


def test_it_equals_the_run_in_one_process(finished: Finished) -> None:
    config = finished.parties["coordinator"].kit.config
    assert METHODS[config.method].title == "Factorized-FL"
    one = api.run(config, finished.root / "one-process", data=finished.root / "data", device="cpu")
    wanted = one.load_checkpoint()
    for k, name in enumerate(NAMES):
        got = finished.run(name).load_checkpoint()
        for tensor, value in got.items():
            prefix, _, rest = tensor.partition("/")
            kind, _, bare = rest.partition("/")
            if prefix not in ("state", "momentum"):
                continue
            expected = wanted.get(f"{prefix}/{k}/{bare}")
            if expected is None:
                expected = wanted[f"{prefix}/all/{bare}"][k]
            value = value[0] if kind == "all" else value
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
        theirs = [record for record in one.metrics() if record["client"] == k]
        for mine, their in zip(finished.run(name).metrics(), theirs, strict=True):
            assert {**mine, "client": k} == pytest.approx(their, abs=1e-6)


def test_the_model_answers_in_the_sites_own_words(finished: Finished) -> None:
    picture = next((finished.root / "data" / "birch").glob("*/*.png"))
    said = ffl("predict", finished.root / "kits" / "birch" / "model", picture)
    assert said.startswith(str(picture))
    assert "birch calls it" in said
    classes = json.loads((finished.root / "kits" / "birch" / "model" / "model.json").read_text())["classes"]
    assert len(classes) == 6


def test_labels_and_class_names_never_leave_a_site(finished: Finished) -> None:
    """No file of the coordinator, logs included, has any class name in it, nor of any other site."""
    for party in ("coordinator", *NAMES):
        for file in (finished.root / "kits" / party).rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                for other in set(NAMES) - {party}:
                    assert f"{other} calls it".encode() not in content, file


def test_the_coordinator_sees_only_what_sites_report(finished: Finished) -> None:
    records = finished.run("coordinator").metrics()
    assert {record["client"] for record in records if record["accuracy"] is not None} == {0}
    own = [record["accuracy"] for record in finished.run("aster").metrics()]
    assert [record["accuracy"] for record in records if record["client"] == 0] == own
    assert {client["train"] for client in finished.run("coordinator").clients()} == {72, 108, 180}
    assert all(client["classes"] == [] for client in finished.run("coordinator").clients())


def test_only_the_coordinators_port_is_open(finished: Finished) -> None:
    port = finished.parties["coordinator"].kit.plan.port
    assert port in {number for _, number in finished.listened["coordinator"]}
    for party, addresses in finished.listened.items():
        for address, number in addresses:
            print(f"{party} listens on {address}:{number}")
            assert address.rpartition(":")[2] == "127.0.0.1"
    assert all(port not in {n for _, n in finished.listened[name]} for name in NAMES)


def test_private_keys_are_their_owners_only(finished: Finished) -> None:
    keys = [*list((finished.root / "kits").rglob("*.key")), finished.root / "kits" / "authority" / "cert.json"]
    assert len(keys) == 5
    for key in keys:
        assert key.stat().st_mode & 0o077 == 0
        assert key.parent.stat().st_mode & 0o077 == 0


def test_status_is_readable_before_and_after(finished: Finished) -> None:
    assert "coordinator of trio: " in finished.seen_status
    after = ffl("federation", "status", finished.root / "kits" / "coordinator")
    assert "coordinator of trio: complete" in after
    assert "round 3 of 3" in after
    site = ffl("federation", "status", finished.root / "kits" / "cedar")
    assert "cedar of trio: done" in site
    assert "% of own test images" in site
