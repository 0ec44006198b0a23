"""Keys made by each party, in real processes: a certificate renewed and a site revoked while the federation runs."""

from pathlib import Path

import pytest

from factorized_fl.results.rundir import RunDirectory
from factorized_fl.silo.agreement import read_kit
from factorized_fl.silo.journal import journal_path
from factorized_fl.silo.supervise import is_running
from tests.silo.parties import NAMES
from tests.silo.processes import Party, ffl, wait_for, write_hospitals, write_sites

pytest.importorskip("nvflare", reason="FLARE is not installed")
pytestmark = [pytest.mark.xdist_group("network"), pytest.mark.network_full]


def test_a_certificate_is_renewed_and_a_site_revoked_while_the_federation_runs(tmp_path: Path) -> None:
    data = write_hospitals(tmp_path / "data")
    sites = write_sites(tmp_path / "sites.toml", rounds=40, epochs=6, quorum=2, method="fedavg")
    ffl("federation", "new", sites, "--out", "kits", "--own-keys", folder=tmp_path)
    office = Path("kits/authority")

    def certify(party: str, *options: str) -> None:
        ffl("federation", "request", f"kits/{party}", "--out", f"{party}.request", *options, folder=tmp_path)
        ffl("federation", "approve", office, party, f"{party}.request", *options, folder=tmp_path)
        ffl("federation", "install", f"kits/{party}", f"{party}.approval", folder=tmp_path)

    for party in ("coordinator", *NAMES):
        certify(party)
    kits = {party: tmp_path / "kits" / party for party in ("coordinator", *NAMES)}
    parties = {"coordinator": Party(kits["coordinator"])}
    parties |= {n: Party(kits[n], "--data", data / n, "--device", "cpu", "--no-alone") for n in NAMES}
    run = RunDirectory(kits["coordinator"] / "run")
    try:
        for each in parties.values():
            each.start()
        wait_for(lambda: run.path.exists() and len(run.timing()) >= 2, "round 2", 120)
        certify("aster", "--new-key")
        said = "a new certificate or notice of members is installed"
        wait_for(lambda: said in journal_path(read_kit(kits["aster"])).read_text(), "the new certificate")
        before = len(run.timing())
        wait_for(lambda: len(run.timing()) >= before + 2, "two rounds more", 120)
        ffl("federation", "revoke", office, "cedar", folder=tmp_path)
        ffl("federation", "install", "kits/coordinator", "members.json", folder=tmp_path)
        wait_for(lambda: not is_running(read_kit(kits["cedar"])), "the end of cedar", 120)
        revoked = len(RunDirectory(kits["cedar"] / "run").metrics())
        for name in ("coordinator", "aster", "birch"):
            assert parties[name].wait(240) == 0, parties[name].console
    finally:
        for each in parties.values():
            each.end()
    assert run.checkpoint_round() == 40
    assert "the authority has revoked this site" in parties["cedar"].console
    assert revoked == len(RunDirectory(kits["cedar"] / "run").metrics()) < 40
    for name in ("aster", "birch"):
        rounds = [record["round"] for record in RunDirectory(kits[name] / "run").metrics()]
        assert rounds == sorted({*rounds})  # none twice
        assert rounds[-1] == 40
