"""Three hospitals, three folders of images, three label schemes, three models: the guide, as real processes.

aster has four kinds of digits, cedar all ten, birch six drawn shapes; each calls its classes by its own names.
"""

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from factorized_fl import api
from factorized_fl.cli import app
from factorized_fl.methods import METHODS
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.keys import Notice, read_notice
from factorized_fl.silo.status import read_status, status_lines
from factorized_fl.silo.supervise import is_running
from tests.silo.parties import NAMES
from tests.silo.processes import (
    Federation,
    Party,
    ffl,
    flat,
    free_port,
    listening,
    save_findings,
    wait_for,
    write_hospitals,
)
from tests.silo.secrets_of import foreign_secrets, private_keys

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = pytest.mark.xdist_group("network")


GUIDE = (Path(__file__).parents[2] / "docs" / "federate.md").read_text()
FIRST, _, REST = GUIDE.partition("## 6. The months after")
PARTIES = ("coordinator", *NAMES)


def blocks(language: str, guide: str = GUIDE) -> list[str]:
    """The guide's blocks of code in one language."""
    return re.findall(rf"```{language}\n(.*?)```", guide, re.DOTALL)


def commands(guide: str) -> list[list[str]]:
    """The words of each command in the guide's blocks, without `ffl`."""
    lines = [line.split() for block in blocks("sh", guide) for line in block.splitlines()]
    assert all(name == "ffl" for name, *_ in lines)
    return [words for _, *words in lines]


def ffl_here(words: list[str], folder: Path) -> str:
    """The output of a command that is run in this process, which is faster."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


@dataclass
class Finished:
    """A federation that has run to its end by the guide's commands, and their output."""

    root: Path
    kits: dict[str, Kit]
    listened: dict[str, set[tuple[str, int]]]
    printed: dict[str, str]

    def run(self, party: str) -> RunDirectory:
        return RunDirectory(self.kits[party].run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Run the guide's commands, with a free port."""
    root = tmp_path_factory.mktemp("hospitals")
    write_hospitals(root / "data")
    (agreement,) = blocks("toml")
    (root / "sites.toml").write_text(agreement.replace("port = 8443", f"port = {free_port()}"))
    printed: dict[str, str] = {}
    listened: dict[str, set[tuple[str, int]]] = {party: set() for party in PARTIES}
    kits: dict[str, Kit] = {}
    started: list[Party] = []
    ended = threading.Event()

    def watch() -> None:
        """Note which party listens where, from the first process to the last."""
        while not ended.wait(0.2):
            for party in tuple(started):
                listened[party.kit.party] |= listening(party.process and party.process.pid)

    def over() -> bool:
        return all((read_status(kits[party]) or {}).get("note") in ("complete", "done") for party in PARTIES)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        for words in commands(FIRST):
            if words[0] == "predict":
                wait_for(over, "the end of the federation", 150)
            if words[0] in ("serve", "join"):  # these stay in the foreground
                started.append(Party(root / words[1], *words[2:]).start(root))
            elif words[1] in ("request", "approve", "install"):  # the guide says that each party does the same
                for party in PARTIES:
                    ffl_here([word.replace("aster", party) for word in words], root)
            else:
                printed[" ".join(words)] = ffl(*words, folder=root)
            if words[:2] == ["federation", "new"]:
                kits |= {party: read_kit(root / "kits" / party) for party in PARTIES}
        for party in started:
            assert party.wait() == 0, party.console
        assert not any(is_running(kit) for kit in kits.values())
        yield Finished(root, kits, listened, printed)
    finally:
        ended.set()
        watcher.join()
        for party in started:
            party.end()


def test_all_rounds_are_done_and_every_site_has_its_model(finished: Finished) -> None:
    for party in PARTIES:
        assert finished.run(party).checkpoint_round() == 3
    for name in NAMES:
        card = (finished.root / "kits" / name / "model" / "README.md").read_text()
        right = float(re.search(r"\*\*([\d.]+)%\*\* correct", card)[1])
        alone = float(re.search(r"without the other participants, .*reached\s+([\d.]+)%", card)[1])
        print(f"{name}: {right:.2f}% in the federation, {alone:.2f}% alone")
        assert right == pytest.approx(100 * finished.run(name).summary()["accuracy_mean"], abs=0.01)


def test_it_equals_the_run_in_one_process(finished: Finished) -> None:
    config = finished.kits["coordinator"].config
    assert METHODS[config.method].card.title == "Factorized-Peers"
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
            assert flat({**mine, "client": k}) == pytest.approx(flat(their), abs=1e-6)


def test_the_model_answers_in_the_sites_own_words(finished: Finished) -> None:
    said = finished.printed["predict kits/aster/model data/aster"]
    assert len(said.splitlines()) == 120
    right = sum(f"aster calls it {line.split('/')[2][-1]}/" in line.split(": ")[0] for line in said.splitlines())
    assert right == 120
    about = json.loads((finished.kits["aster"].model / "model.json").read_text())
    assert about["classes"] == [f"aster calls it {digit}" for digit in range(4)]
    shares = [line.rpartition(": ")[2].split(", ") for line in said.splitlines()]
    assert all(share[0].startswith("aster calls it ") for share in shares)


def test_every_party_has_a_page_of_what_it_may_see(finished: Finished) -> None:
    for party in ("aster", "coordinator"):
        assert finished.printed[f"report kits/{party}"] == f"Report: kits/{party}/report.html\n"
    own, coordinators = ((finished.kits[p].path / "report.html").read_text() for p in ("aster", "coordinator"))
    assert "aster calls it 3" in own
    assert "aster calls it" not in coordinators
    assert "reported by 1 of 3 sites." in coordinators
    right = f"{100 * finished.run('aster').summary()['accuracy_mean']:.1f}%"
    assert f"aster: {right} accuracy, " in own
    assert "over its control. One seed cannot decide" in own


def test_a_first_look_at_the_data(finished: Finished) -> None:
    said = finished.printed["data inspect data/aster"]
    assert "120 images in 4 classes, 16x16; 120 grey, 0 colour; 0 unreadable" in said
    assert re.search(r"aster calls it 0 +. +30", said)


def test_labels_and_class_names_never_leave_a_site(finished: Finished) -> None:
    """No file of the coordinator or of another site, logs included, contains a site's class names."""
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
    port = finished.kits["coordinator"].agreement.port
    assert port in {number for _, number in finished.listened["coordinator"]}
    for party, addresses in finished.listened.items():
        for address, number in addresses:
            print(f"{party} listens on {address}:{number}")
            assert address.rpartition(":")[2] == "127.0.0.1"
    assert all(port not in {n for _, n in finished.listened[name]} for name in NAMES)


def test_private_keys_are_their_owners_only(finished: Finished) -> None:
    keys = list((finished.root / "kits").rglob("*.key"))
    assert len(keys) == 5
    for key in keys:
        assert key.stat().st_mode & 0o077 == 0
        assert key.parent.stat().st_mode & 0o077 == 0
    secrets = private_keys(finished.root / "kits")
    assert secrets.keys() == {"authority", *PARTIES}
    assert foreign_secrets(finished.root / "kits", secrets) == []


def test_the_months_after(finished: Finished, tmp_path: Path) -> None:
    """The guide's commands for renewal, a new site, a revoked one and more rounds, on a copy of the kits."""
    shutil.copytree(finished.root / "kits", tmp_path / "kits")
    printed = {" ".join(words): ffl_here(words, tmp_path) for words in commands(REST)}
    for words, said in {
        "federation install kits/aster aster.approval": "aster has a certificate until",
        "federation install kits/dahlia dahlia.approval": "dahlia has a certificate until",
        "federation install kits/aster kits/members.json": "aster takes part in 8 rounds now",
        "federation audit kits/aster": "the chain is unbroken",
    }.items():
        assert said in printed[words]
    coordinator = read_kit(tmp_path / "kits" / "coordinator")
    assert coordinator.agreement.sites == (*NAMES, "dahlia")
    assert read_notice(coordinator) == Notice(3, (*NAMES, "dahlia"), ("birch",), 8)
    assert (coordinator.config.rounds, coordinator.config.clients) == (8, 4)
    secrets = private_keys(tmp_path / "kits")
    assert foreign_secrets(tmp_path / "kits", secrets) == []


def test_the_coordinator_prints_who_is_there_before_the_first_round(finished: Finished) -> None:
    printed = (finished.kits["coordinator"].path / "console.txt").read_text()
    before, begins, _ = printed.partition("round 1 of 3 begins")
    assert begins
    assert "of 3 sites are connected: none yet" in before
    assert "3 of 3 sites are connected: aster, birch, cedar" in before


def test_status_is_readable_before_and_after(finished: Finished) -> None:
    assert "coordinator of trio: " in finished.printed["federation status kits/coordinator"]
    after = "\n".join(status_lines(finished.kits["coordinator"]))
    assert "coordinator of trio: complete" in after
    assert "round 3 of 3" in after
    site = "\n".join(status_lines(finished.kits["cedar"]))
    assert "cedar of trio: done" in site
    assert "% of own test images" in site


@pytest.mark.network_full
def test_in_full(tmp_path: Path) -> None:
    """Rounds enough to learn: every site's accuracy beside that of its model trained alone, and the verdict."""
    data = write_hospitals(tmp_path / "data", 60)
    settings = {"method": "factorized-fl-beta", "rounds": 25, "epochs": 4, "deadline": 200.0}
    federation = Federation(tmp_path, data, alone=True, **settings)
    found = federation.run()
    for name, party in federation.sites.items():
        results = json.loads((party.kit.model / "model.json").read_text())["results"]
        found[name] = {"in_the_federation": results["accuracy"], **{k: results[k] for k in ("reference", "verdict")}}
        found[name]["test_images"] = results["images"]
        print(name, found[name])
    save_findings("three-sites.json", {**settings, **found})
    assert found["equal_to_undisturbed"]
    assert all(found[name]["in_the_federation"] > 0.5 for name in NAMES)
