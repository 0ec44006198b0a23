"""The life of a federation as real processes: keys born at each party, a site added, one renewed, one revoked.

The coordinator is killed with SIGKILL in each of the seven rounds.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo.agreement import read_kit
from factorized_fl.silo.audit import audit_path, verify
from factorized_fl.silo.journal import journal_path
from factorized_fl.silo.status import read_status
from factorized_fl.silo.supervise import is_running
from tests.silo.parties import NAMES
from tests.silo.processes import Party, ffl, save_findings, wait_for, write_hospitals, write_sites
from tests.silo.secrets_of import foreign_secrets, private_keys

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = [pytest.mark.xdist_group("network"), pytest.mark.network_full]

ROUNDS = 7
PARTIES = (COORDINATOR, *NAMES, "dahlia")


def test_sites_come_and_go_while_the_coordinator_is_killed_in_each_round(tmp_path: Path) -> None:
    """dahlia is added in round 3, aster renews its key in round 4, cedar is revoked in round 5."""
    data = write_hospitals(tmp_path / "data")
    (data / "dahlia").symlink_to(data / "cedar")
    sites = write_sites(tmp_path / "sites.toml", rounds=ROUNDS, epochs=12, quorum=2, method="fedavg", deadline=120.0)
    ffl("federation", "new", sites, "--out", "kits", "--own-keys", folder=tmp_path)
    office, kits = Path("kits/authority"), {party: tmp_path / "kits" / party for party in PARTIES}

    def certify(party: str, *options: str) -> None:
        ffl("federation", "request", f"kits/{party}", "--out", f"{party}.request", *options, folder=tmp_path)
        ffl("federation", "approve", office, party, f"{party}.request", *options, folder=tmp_path)
        ffl("federation", "install", f"kits/{party}", f"{party}.approval", folder=tmp_path)

    def party_of(name: str) -> Party:
        return Party(kits[name], "--data", data / name, "--device", "cpu", "--no-alone")

    parties: dict[str, Party] = {}

    def add_dahlia() -> None:
        ffl("federation", "add", office, "dahlia", "--out", "kits", folder=tmp_path)
        certify("dahlia")
        ffl("federation", "install", "kits/coordinator", "kits/members.json", folder=tmp_path)
        parties["dahlia"] = party_of("dahlia").start()

    def renew_aster() -> None:
        certify("aster", "--new-key")

    def revoke_cedar() -> None:
        ffl("federation", "revoke", office, "cedar", "--out", "kits", folder=tmp_path)
        ffl("federation", "install", "kits/coordinator", "kits/members.json", folder=tmp_path)

    changes: dict[int, Callable[[], None]] = {3: add_dahlia, 4: renew_aster, 5: revoke_cedar}
    for party in (COORDINATOR, *NAMES):
        certify(party)
    secrets = private_keys(tmp_path / "kits")
    parties |= {COORDINATOR: Party(kits[COORDINATOR])} | {name: party_of(name) for name in NAMES}
    run, killed, revoked_at = RunDirectory(kits[COORDINATOR] / "run"), [], 0
    try:
        for each in parties.values():
            each.start()
        for number in range(1, ROUNDS + 1):

            def in_round(number: int = number) -> bool:
                status = read_status(read_kit(kits[COORDINATOR])) or {}
                return (status.get("round"), status.get("note")) == (number, "waiting for answers")

            wait_for(in_round, f"round {number}", 150)
            if number in changes:  # the machine of the coordinator loses power, and starts after the change
                parties[COORDINATOR].kill_all()
                revoked_at = len(audit_path(read_kit(kits[COORDINATOR])).read_bytes().splitlines())
                changes[number]()
                parties[COORDINATOR] = Party(kits[COORDINATOR]).start()
            else:
                parties[COORDINATOR].kill("process")
            killed.append(number)
            if number == 5:
                wait_for(lambda: not is_running(read_kit(kits["cedar"])), "the end of cedar", 120)
                of_cedar = contents(kits["cedar"])
                audit_at = revoked_at
        for name in (COORDINATOR, "aster", "birch", "dahlia"):
            assert parties[name].wait(240) == 0, parties[name].console
    finally:
        for each in parties.values():
            each.end()
    assert killed == list(range(1, ROUNDS + 1))
    assert run.checkpoint_round() == ROUNDS
    assert sorted({record["round"] for record in run.metrics()}) == killed
    found = {}
    for name in ("aster", "birch", "dahlia", "cedar"):
        lines = journal_path(read_kit(kits[name])).read_text().splitlines()
        trained = Counter(int(line.split("trained round ")[1].split()[0]) for line in lines if "trained round " in line)
        assert set(trained.values()) == {1}, (name, trained)  # no round twice
        found[name] = [min(trained), max(trained)]
        assert sorted(trained) == list(range(min(trained), max(trained) + 1))
        assert [record["round"] for record in RunDirectory(kits[name] / "run").metrics()] == sorted(trained)
        verify(read_kit(kits[name]))
    assert found["aster"] == found["birch"] == [1, ROUNDS]
    assert found["dahlia"] == [3, ROUNDS]
    assert found["cedar"][1] in (4, 5)
    # The revoked site received nothing, and nothing changed in its kit.
    assert contents(kits["cedar"]) == of_cedar
    verify(read_kit(kits[COORDINATOR]))
    audit = [json.loads(line) for line in audit_path(read_kit(kits[COORDINATOR])).read_text().splitlines()]
    to = Counter(line["to"] for line in audit[audit_at:] if line["event"] == "sent")
    assert to.keys() == {"aster", "birch", "dahlia"}
    assert any(line["event"] == "sent" and line["to"] == "cedar" for line in audit[:audit_at])
    assert "the authority has revoked this site" in parties["cedar"].console
    # aster has a new key; no key, old or new, is in a file of another party.
    now = private_keys(tmp_path / "kits")
    assert now.keys() == {"authority", *PARTIES}
    assert now["aster"] != secrets["aster"]
    assert foreign_secrets(tmp_path / "kits", now) == foreign_secrets(tmp_path / "kits", secrets) == []
    save_findings(
        "life.json", {"rounds": ROUNDS, "coordinator_killed_in_rounds": killed, "first_and_last_round": found}
    )


def contents(kit: Path) -> dict[str, bytes]:
    """The files in which a site keeps what it received and trained."""
    return {
        str(path.relative_to(kit)): path.read_bytes() for path in sorted((kit / "run").rglob("*")) if path.is_file()
    }


def test_a_new_site_tries_a_finished_federation_and_then_joins_more_rounds(tmp_path: Path) -> None:
    data = write_hospitals(tmp_path / "data")
    (data / "dahlia").symlink_to(data / "cedar")
    sites = write_sites(tmp_path / "sites.toml", rounds=2, quorum=2, method="fedavg", deadline=120.0)
    ffl("federation", "new", sites, "--out", "kits", "--own-keys", folder=tmp_path)
    kits = {party: tmp_path / "kits" / party for party in PARTIES}

    def certify(party: str) -> None:
        ffl("federation", "request", f"kits/{party}", folder=tmp_path)
        ffl("federation", "approve", "kits/authority", party, f"kits/{party}/{party}.request", folder=tmp_path)
        ffl("federation", "install", f"kits/{party}", f"{party}.approval", folder=tmp_path)

    def run_all(*names: str) -> None:
        choices = ("--device", "cpu", "--no-alone")
        parties = [Party(kits[COORDINATOR]), *(Party(kits[n], "--data", data / n, *choices) for n in names)]
        try:
            for each in parties:
                each.start()
            for each in parties:
                assert each.wait(240) == 0, each.console
        finally:
            for each in parties:
                each.end()

    for party in (COORDINATOR, *NAMES):
        certify(party)
    run_all(*NAMES)
    ffl("federation", "add", "kits/authority", "dahlia", "--out", "kits", folder=tmp_path)
    certify("dahlia")
    ffl("federation", "install", "kits/coordinator", "kits/members.json", folder=tmp_path)
    coordinator = Party(kits[COORDINATOR], "--visitors").start()
    try:
        visitor = Party(kits["dahlia"])
        visitor.arguments = [
            "federation",
            "try",
            str(kits["dahlia"]),
            "--data",
            str(data / "dahlia"),
            "--device",
            "cpu",
        ]
        visitor.start()
        try:
            assert visitor.wait(240) == 0, visitor.console
        finally:
            visitor.end()
        assert coordinator.process is not None
        assert coordinator.process.poll() is None
    finally:
        coordinator.end()
    print(visitor.console)
    assert "With the federation: " in visitor.console
    assert "alone, after as much training: " in visitor.console
    assert (kits["dahlia"] / "trial" / "model" / "model.safetensors").is_file()
    assert not list((kits["dahlia"] / "trial").rglob("*.key"))
    run = RunDirectory(kits[COORDINATOR] / "run")
    assert run.checkpoint_round() == len(run.timing()) == 2
    ffl("federation", "extend", "kits/authority", "--rounds", "3", "--out", "kits", folder=tmp_path)
    for party in PARTIES:
        ffl("federation", "install", f"kits/{party}", "kits/members.json", folder=tmp_path)
    run_all(*NAMES, "dahlia")
    assert run.checkpoint_round() == 3
    assert sorted(r["client"] for r in run.metrics() if r["round"] == 3 and r["steps"]) == [0, 1, 2, 3]
