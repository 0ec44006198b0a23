"""Keys born at each party, approvals, renewals, added and revoked sites."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from factorized_fl.cli import app
from factorized_fl.core.errors import UserError
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import authority
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.audit import audit_path
from factorized_fl.silo.authority import approve, found, read_register, write_notice
from factorized_fl.silo.finish import has_ended, remember_end
from factorized_fl.silo.keys import NOTICE, ExpiryWarning, fingerprint, install, make_request, read_notice, read_request
from factorized_fl.silo.kits import write_keyless
from factorized_fl.silo.messages import Message
from factorized_fl.silo.preflight import check_kit
from factorized_fl.silo.site import Site
from factorized_fl.silo.transport.flare import setup
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, make_sites, trio_config, write_trio
from tests.silo.secrets_of import foreign_secrets, private_keys

pytest.importorskip("nvflare", reason="FLARE is not installed")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_trio(tmp_path_factory.mktemp("trio"))
    shutil.copytree(root / "aster", root / "dahlia")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, kits without keys, and the requests of all parties."""
    root = tmp_path_factory.mktemp("made")
    kits = kits_of(root, trio_config("fedavg", rounds=6))
    root_certificate = found(root / "authority", kits["aster"].agreement, dict(kits["aster"].table))
    for party, kit in kits.items():
        write_keyless(kit, root_certificate)
        make_request(kit, root / f"{party}.request")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "federation"))


def kit_in(root: Path, party: str) -> Kit:
    return read_kit(root / party)


def approved(root: Path, party: str, **options: object) -> Path:
    approve(root / "authority", party, root / f"{party}.request", root / f"{party}.approval", **options)  # type: ignore[arg-type]
    return root / f"{party}.approval"


def test_no_private_key_is_in_a_file_of_another_party(root: Path) -> None:
    for party in (COORDINATOR, *NAMES):
        install(kit_in(root, party), approved(root, party))
        check_kit(kit_in(root, party))
    secrets = private_keys(root)
    assert secrets.keys() == {"authority", COORDINATOR, *NAMES}
    assert foreign_secrets(root, secrets) == []
    for wrapped in ({"key": setup.credentials(kit_in(root, "birch")).key.read_text()}, "raw"):  # the search finds them
        kept = root / "aster" / "kept"
        kept.write_bytes(secrets["birch"] if wrapped == "raw" else json.dumps(wrapped).replace("\\n", "").encode())
        assert foreign_secrets(root, secrets) == [kept]
    for path in root.rglob("*.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_kit_without_a_certificate_says_what_to_do(root: Path) -> None:
    with pytest.raises(UserError, match=r"aster has no certificate yet: `ffl federation request .*aster`"):
        check_kit(kit_in(root, "aster"))
    for party in ("aster", COORDINATOR):
        about = (root / party / "README.md").read_text()
        assert "ffl federation request .  " in about
        assert "is your private key" not in about  # there is none yet


def test_requests_that_are_not_what_they_claim(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a request of birch, not of aster"):
        approve(root / "authority", "aster", root / "birch.request", tmp_path / "out")
    with pytest.raises(UserError, match="'dahlia' is no party of trio"):
        approve(root / "authority", "dahlia", root / "aster.request", tmp_path / "out")
    # Birch makes a request in the name of aster, which is approved already: the keys differ.
    approved(root, "aster")
    forger = replace(kit_in(root, "birch"), party="aster")
    make_request(forger, tmp_path / "forged.request")
    with pytest.raises(UserError, match=r"has the key [0-9a-f ]+, and aster was approved with [0-9a-f ]+: ask aster"):
        approve(root / "authority", "aster", tmp_path / "forged.request", tmp_path / "out")
    # A request whose name was changed on its way is not signed with its key.
    import base64

    lines = (root / "birch.request").read_text().splitlines()
    der = base64.b64decode("".join(lines[1:-1])).replace(b"birch", b"aster")
    text = base64.encodebytes(der).decode()
    (tmp_path / "changed.request").write_text(f"{lines[0]}\n{text}{lines[-1]}\n")
    with pytest.raises(UserError, match="is not signed with its own key"):
        read_request(tmp_path / "changed.request")
    (tmp_path / "rubbish.request").write_text("rubbish")
    with pytest.raises(UserError, match="is not a request of `ffl federation request`"):
        read_request(tmp_path / "rubbish.request")
    other = replace(kit_in(root, "aster"), agreement=replace(kit_in(root, "aster").agreement, id="0" * 16))
    make_request(other, tmp_path / "other.request")
    with pytest.raises(UserError, match="is a request for another federation"):
        approve(root / "authority", "aster", tmp_path / "other.request", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def backdated(root: Path, party: str, begin: timedelta, end: timedelta) -> Path:
    """An approval that is valid between two times from now."""
    folder, now = root / "authority", datetime.now(UTC)
    public = read_request(root / f"{party}.request").key
    signed = setup.make_certificate(
        *(party, kit_in(root, party).agreement, public, (folder / "root.key").read_bytes()),
        *((folder / "rootCA.pem").read_bytes(), now + begin, now + end),
    )
    path = root / f"{party}.approval"
    path.write_bytes(signed)
    return path


def test_approvals_that_may_not_be_installed(root: Path) -> None:
    aster, hour = kit_in(root, "aster"), timedelta(hours=1)
    with pytest.raises(UserError, match="is the approval of birch, not of aster"):
        install(aster, approved(root, "birch"))
    with pytest.raises(UserError, match=r"is valid from .* and not now"):
        install(aster, backdated(root, "aster", -2 * hour, -hour))
    with pytest.raises(UserError, match=r"is valid from .* and not now"):
        install(aster, backdated(root, "aster", hour, 2 * hour))
    old = backdated(root, "aster", -2 * hour, hour)
    first = old.read_bytes()
    assert "aster has a certificate until" in install(aster, old)
    install(aster, approved(root, "aster"))
    old.write_bytes(first)
    with pytest.raises(UserError, match="is older than the certificate in use"):
        install(aster, old)
    make_request(aster, root / "aster.request", new_key=True)
    with pytest.raises(UserError, match=r"was approved with .* repeat with new_key="):
        approved(root, "aster")
    before = setup.credentials(aster).key.read_bytes()
    install(aster, approved(root, "aster", new_key=True))
    assert setup.credentials(aster).key.read_bytes() != before
    check_kit(aster)
    lost = root / "aster.approval"
    lost.write_bytes(first)
    with pytest.raises(UserError, match="approves another key than those of this kit"):
        install(aster, lost)
    foreign = root / "foreign"
    found(foreign, aster.agreement, dict(aster.table))
    approve(foreign, "aster", root / "aster.request", lost)
    with pytest.raises(UserError, match="is not an approval of this federation's authority"):
        install(aster, lost)


def test_a_certificate_that_ends_soon_is_in_the_journal_once_a_day(root: Path) -> None:
    aster, said = kit_in(root, "aster"), list[str]()
    install(aster, approved(root, "aster", days=5))
    warning = ExpiryWarning(aster, said.append)  # type: ignore[arg-type]
    warning.look()
    warning.look()
    (line,) = said
    assert "the certificate of aster expires in 5 days: `ffl federation request" in line


def test_notices_are_signed_and_only_newer_ones_are_used(root: Path) -> None:
    coordinator, office, path = kit_in(root, COORDINATOR), root / "authority", root / NOTICE
    assert read_notice(coordinator) is None
    authority.revoke(office, "cedar")
    write_notice(office, path)
    old = path.read_bytes()
    assert install(coordinator, path) == "coordinator knows 3 sites now: revoked cedar"
    with pytest.raises(UserError, match="is not newer than the notice in use, number 1"):
        install(coordinator, path)
    with pytest.raises(UserError, match="cedar is revoked: `ffl federation add`"):
        approved(root, "cedar")
    with pytest.raises(UserError, match="'cedar' is no member"):
        authority.revoke(office, "cedar")
    with pytest.raises(UserError, match="aster is a party of trio already"):
        authority.add(office, "aster")
    with pytest.raises(UserError, match="must be 1 to 40 small letters"):
        authority.add(office, "../x")
    authority.add(office, "cedar")
    write_notice(office, path)
    assert install(coordinator, path) == "coordinator knows 3 sites now: all are members"
    path.write_bytes(old)
    with pytest.raises(UserError, match="is not newer"):
        install(coordinator, path)
    forged = json.loads(old)
    forged["notice"] = forged["notice"].replace('"number": 1', '"number": 9')
    path.write_text(json.dumps(forged))
    with pytest.raises(UserError, match="is not a notice of this federation's authority"):
        install(coordinator, path)
    path.write_bytes(old)
    with pytest.raises(UserError, match="only the coordinator needs"):
        install(kit_in(root, "aster"), path)


def test_a_site_is_added_renewed_and_revoked_while_the_coordinator_dies(root: Path, data: Path) -> None:
    """dahlia joins in round 3, aster renews in round 4, cedar is revoked in round 5; each time the coordinator dies."""
    for party in (COORDINATOR, *NAMES):
        install(kit_in(root, party), approved(root, party))
    office, sites, journal = root / "authority", dict[str, Site](), list[str]()
    kits = {party: kit_in(root, party) for party in (COORDINATOR, *NAMES)}
    sites = make_sites(kits, data)

    def run_until(round_number: int) -> Loopback:
        """A coordinator that is killed when the round after `round_number` begins."""
        kits[COORDINATOR] = kit_in(root, COORDINATOR)
        parties = Loopback(kits, sites)
        prepare = parties.coordinator.memory.prepare

        def dying(number: int, *rest: object) -> object:
            if number > round_number:
                parties.coordinator.stop.set()
                parties.mailbox.end()
            return prepare(number, *rest)  # type: ignore[arg-type]

        parties.coordinator.memory.prepare = dying  # type: ignore[method-assign,assignment]
        assert parties.run() is (round_number >= 6)
        journal.extend(parties.journal)
        return parties

    run_until(1)
    run_until(2)
    authority.add(office, "dahlia")
    write_notice(office, root / NOTICE)
    register = read_register(office)
    write_keyless(authority.kit_of(register, root / "dahlia", "dahlia"), (office / "rootCA.pem").read_bytes())
    dahlia = kit_in(root, "dahlia")
    make_request(dahlia, root / "dahlia.request")
    install(dahlia, approved(root, "dahlia"))
    assert install(kits[COORDINATOR], root / NOTICE) == "coordinator knows 4 sites now: added dahlia"
    kits["dahlia"] = dahlia
    sites["dahlia"] = Site(dahlia, data / "dahlia", print, report=True)
    first = run_until(3)
    assert first.coordinator.sites == (*NAMES, "dahlia")
    # The newcomer began with the aggregate of the others, and with its own classifier.
    assert first.coordinator.timing[-1]["from_others"]["dahlia"] == 1
    make_request(kits["aster"], root / "aster.request", new_key=True)
    install(kits["aster"], approved(root, "aster", new_key=True))
    check_kit(kits["aster"])
    run_until(4)
    authority.revoke(office, "cedar")
    write_notice(office, root / NOTICE)
    install(kits[COORDINATOR], root / NOTICE)
    before = sites["cedar"].done
    revoked = sites.pop("cedar")
    files = {path: path.read_bytes() for path in kits["cedar"].run.rglob("*") if path.is_file()}
    sent = audit_path(kits[COORDINATOR]).read_text().count('"to": "cedar"')
    assert sent == 4
    run_until(5)
    last = run_until(6)
    news = Message("ready", kits["cedar"].agreement.id, {"train": revoked.train_images})
    last.sites["cedar"] = revoked
    reply = last.ask("cedar", news)
    assert (reply.kind, reply.fields["revoked"], reply.payload) == ("refused", True, b"")
    assert revoked.done == before == 4
    assert {path: path.read_bytes() for path in files} == files
    assert audit_path(kits[COORDINATOR]).read_text().count('"to": "cedar"') == sent
    assert foreign_secrets(root, private_keys(root)) == []
    assert not last.coordinator.memory.received[2]
    assert len(last.coordinator.timing[-1]["from_others"]) == 3
    assert any("cedar: revoked by the authority" in line for line in journal)
    for name, site in sites.items():
        rounds = [record["round"] for record in RunDirectory(site.kit.run).metrics()]
        assert rounds == list(range(3 if name == "dahlia" else 1, 7)), name  # each once
    assert RunDirectory(kits[COORDINATOR].run).checkpoint_round() == 6


def test_the_commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)

    def ffl(*words: str) -> str:
        done = CliRunner().invoke(app, ["federation", *words])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    assert "aster/aster.request: send this file to the authority" in ffl("request", "aster")
    assert "Fingerprint of its key:" in ffl("approve", "authority", "aster", "aster/aster.request")
    assert "aster has a certificate until" in ffl("install", "aster", "aster.approval")
    assert "give this folder to dahlia" in ffl("add", "authority", "dahlia")
    assert "added dahlia" in ffl("install", COORDINATOR, NOTICE)
    ffl("revoke", "authority", "dahlia")
    assert "revoked dahlia" in ffl("install", COORDINATOR, NOTICE)


def test_the_fingerprint_is_one_for_each_key(root: Path) -> None:
    prints = {fingerprint(read_request(root / f"{name}.request").key) for name in NAMES}
    assert len(prints) == 3
    assert all(len(each.replace(" ", "")) == 32 for each in prints)


def test_a_finished_federation_is_extended(root: Path, data: Path) -> None:
    office, path = root / "authority", root / NOTICE
    for party in (COORDINATOR, *NAMES):
        install(kit_in(root, party), approved(root, party))
    kits = {party: kit_in(root, party) for party in (COORDINATOR, *NAMES)}
    assert Loopback(kits, make_sites(kits, data)).run()
    remember_end(kits["aster"])
    with pytest.raises(UserError, match="trio has 6 rounds: extend it to more, not to 6"):
        authority.extend(office, 6)
    authority.extend(office, 8)
    write_notice(office, path)
    for party in (COORDINATOR, *NAMES):
        assert f"{party} takes part in 8 rounds now" in install(kits[party], path)
    kits = {party: kit_in(root, party) for party in (COORDINATOR, *NAMES)}
    assert not has_ended(kits["aster"])
    assert not kits[COORDINATOR].complete
    sites = make_sites(kits, data)
    assert [site.done for site in sites.values()] == [6, 6, 6]
    assert Loopback(kits, sites).run()
    assert RunDirectory(kits[COORDINATOR].run).checkpoint_round() == 8
    for site in sites.values():
        assert [record["round"] for record in RunDirectory(site.kit.run).metrics()] == list(range(1, 9))
    sites["aster"].finish()
    assert "8 rounds of 1 epochs" in (kits["aster"].model / "README.md").read_text()
