"""Attacks on a running coordinator: strangers, impostors, administrators, a malicious member."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.x509 import load_pem_x509_certificate

from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import kits, supervise
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.keeper import Trainer
from factorized_fl.silo.messages import Message
from tests.silo.parties import NAMES
from tests.silo.processes import PATIENCE, Party, wait_for, write_sites

nvflare = pytest.importorskip("nvflare", reason="FLARE is not installed")
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType  # noqa: E402
from nvflare.fuel.f3.message import Message as CellMessage  # noqa: E402
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey  # noqa: E402

from factorized_fl.silo.transport.flare import gate, setup  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("network")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    kits.make_kits(write_sites(root / "sites.toml"), root / "kits")
    return root / "kits"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Party]:
    party = Party(folder / COORDINATOR)
    try:
        party.start()
        wait_for(party.kit.status.exists, "the coordinator's start")
        wait_for(lambda: reached(party.kit.agreement.port), "the coordinator's port")
        yield party
        assert party.process is not None
        assert party.process.poll() is None, "an attack ended the coordinator"
    finally:
        party.end()


def reached(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def greets(port: int, kit: Path | None) -> bool:
    """True if the coordinator accepts this kit's certificate and answers the first bytes of HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if kit is not None:
        context.load_cert_chain(kit / "flare/startup/client.crt", kit / "flare/startup/client.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return len(line.recv(64)) > 0
    except (ssl.SSLError, ConnectionError):
        return False


def test_without_or_with_a_foreign_certificate_there_is_no_connection(
    server: Party, folder: Path, tmp_path: Path
) -> None:
    port = server.kit.agreement.port
    foreign = tmp_path / "foreign"
    kits.make_kits(write_sites(tmp_path / "sites.toml"), foreign)  # same names, another authority
    assert greets(port, folder / "aster")
    assert not greets(port, None)
    assert not greets(port, foreign / "aster")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:  # no TLS at all
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        assert not line.recv(64).startswith(b"\0\0")


def test_a_certificate_counts_only_between_its_two_times(server: Party, folder: Path, tmp_path: Path) -> None:
    """Certificates of the right authority and key: valid now, expired, and not yet valid."""
    made = json.loads((folder / "authority" / "cert.json").read_text())
    key, root = made["root_pri_key"].encode(), (folder / "aster/flare/startup/rootCA.pem").read_bytes()
    startup = Path(shutil.copytree(folder / "aster", tmp_path / "aster")) / "flare" / "startup"
    public = load_pem_x509_certificate((startup / "client.crt").read_bytes()).public_key()
    for begin, end, accepted in ((-2, 2, True), (-2, -1, False), (1, 2, False)):
        times = (datetime.now(UTC) + timedelta(hours=hours) for hours in (begin, end))
        (startup / "client.crt").write_bytes(
            setup.make_certificate("aster", server.kit.agreement, public, key, root, *times)
        )
        assert greets(server.kit.agreement.port, tmp_path / "aster") is accepted, (begin, end)


def run_agent(kit: Kit) -> "subprocess.Popen[bytes]":
    kit.logs.mkdir(exist_ok=True)
    setup.prepare(kit)
    return supervise.start(kit)


def flare_log(kit: Kit) -> str:
    return (kit.logs / "process.txt").read_text(errors="replace")


def test_a_site_cannot_claim_anothers_name(server: Party, folder: Path, tmp_path: Path) -> None:
    """aster's certificate, birch's name."""
    shutil.copytree(folder / "aster", tmp_path / "impostor")
    settings = tmp_path / "impostor" / "federation.toml"
    settings.write_text(settings.read_text().replace('party = "aster"', 'party = "birch"'))
    impostor = read_kit(tmp_path / "impostor")
    agent = run_agent(impostor)
    try:
        wait_for(lambda: "'aster' but claimed endpoint 'birch'" in flare_log(server.kit), "the refusal")
        assert "Successfully registered" not in flare_log(impostor)
        birch = json.loads(server.kit.status.read_text())["sites"][NAMES.index("birch")]
        assert not birch["connected"]
        named = "refused a connection, as the certificate of aster was shown under the name birch"
        wait_for(lambda: named in journal_path(server.kit).read_text(), "the line in the journal")
    finally:
        supervise.end(agent)


@pytest.fixture(scope="module")
def administrator(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worst case: an attacker has the authority's key and makes a certificate of a project administrator."""
    scratch = tmp_path_factory.mktemp("stolen")
    agreement = read_kit(folder / COORDINATOR).agreement
    shutil.copytree(folder / "authority", scratch / agreement.name / "state")
    return setup.provision(agreement, scratch, "boss@evil.example") / "boss@evil.example"


def administer(kit: Path, user: str, *jobs: Path) -> dict[str, str]:
    """The outcome of each attempt, by its name."""
    command = [sys.executable, "-m", "tests.silo.administer", str(kit), user, *map(str, jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return {name: what for name, colon, what in lines if colon}


def write_job(job: Path, executor: str, code: str = "") -> Path:
    """A job for all sites that runs a class, optionally from code inside the job."""
    config = job / "app" / "config"
    config.mkdir(parents=True)
    if code:
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "mine.py").write_text(code)
    meta = {"name": "evil", "min_clients": 1, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta))
    client = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": {}}}]}
    (config / "config_fed_client.json").write_text(json.dumps(client))
    (config / "config_fed_server.json").write_text(json.dumps({"format_version": 2, "workflows": []}))
    return job


def test_a_site_cannot_act_as_administrator(server: Party, folder: Path, administrator: Path, tmp_path: Path) -> None:
    shutil.copytree(administrator, tmp_path / "admin")
    for name in ("client.crt", "client.key"):
        shutil.copy(folder / "aster" / "flare" / "startup" / name, tmp_path / "admin" / "startup" / name)
    for user in ("boss@evil.example", "aster"):
        found = administer(tmp_path / "admin", user, write_job(tmp_path / f"job of {user}", "subprocess.Popen"))
        assert list(found) == ["log in"]
        assert found["log in"].startswith("refused"), found


def test_messages_of_an_administrator_are_dropped(server: Party, administrator: Path, tmp_path: Path) -> None:
    """With or without shipped code: the message is dropped, no right is granted, no launcher is installed."""
    write_job(tmp_path / "shipped", "mine.Mine", "raise SystemExit")
    write_job(tmp_path / "plain", "subprocess.Popen")
    found = administer(administrator, "boss@evil.example", tmp_path / "shipped", tmp_path / "plain")
    assert found == {"log in": "refused: nobody answers"}
    assert "for FLARE's channel 'hci_channel'" in journal_path(server.kit).read_text()
    assert not list((setup.workspace(server.kit) / "storage").rglob("*meta*"))


@pytest.fixture
def as_agent(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kit, str], "subprocess.Popen[bytes]"]:
    """Start a site with another class in place of the agent: its owner controls the machine."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def start(kit: Kit, name: str) -> "subprocess.Popen[bytes]":
        monkeypatch.setattr(setup, "_SITE", f"tests.silo.evil.{name}")
        return run_agent(kit)

    return start


def test_a_malicious_member_is_refused_and_named(
    server: Party, folder: Path, as_agent: Callable[[Kit, str], "subprocess.Popen[bytes]"]
) -> None:
    """A valid certificate and bad messages: each is refused, the coordinator stands, an honest message still works."""
    kit = read_kit(folder / "aster")
    agent = as_agent(kit, "EvilAgent")
    try:
        replies = json.loads(wait_for(lambda: _text(kit.path / "replies.json"), "the evil agent's work"))
    finally:
        supervise.end(agent)
    assert replies.pop("honest") == "ok"
    journal = journal_path(server.kit).read_text()
    for words in (
        "aster: refused its message, as its header is too long",
        "dropped a message of aster for FLARE's channel 'factorized_fl'",
        "aster: refused its message, as it belongs to another federation",
        "aster: refused its message, as train is -1",
        "aster: dropped an answer to round-7, which is not an open request",
    ):
        assert words in journal
    assert not any(line[20:].startswith("birch") for line in journal.splitlines())
    assert "aster: refused its message, as " in journal
    assert "bytes are more than" in journal
    assert replies["far too large"] == "comm_error"  # cut off by FLARE, before it fills anybody's memory
    assert replies["somebody else's name"] != "ok"
    assert "invalid auth token signature" in flare_log(server.kit)


def test_a_site_cannot_give_orders_to_another_partys_flare(
    server: Party, folder: Path, as_agent: Callable[[Kit, str], "subprocess.Popen[bytes]"]
) -> None:
    """FLARE obeys orders from any member whose message does not ask for an authorization check."""
    birch, cedar = read_kit(folder / "birch"), read_kit(folder / "cedar")
    victim = as_agent(birch, "Idler")
    try:
        wait_for((birch.path / "up").exists, "birch's start")
        evil = as_agent(cedar, "Commander")
        try:
            replies = json.loads(wait_for(lambda: _text(cedar.path / "replies.json"), "the commander's work"))
        finally:
            supervise.end(evil)
        assert victim.poll() is None
    finally:
        supervise.end(victim)
    assert set(replies) == {"show a file", "say what you are", "stop", "begin again", "swallow this"}
    assert all(reply.split()[0] in ("timeout", "comm_error") for reply in replies.values()), replies
    journal = journal_path(server.kit).read_text()
    assert "dropped a message of cedar for FLARE's channel 'admin', which this federation does not use" in journal
    assert "dropped a message of cedar for FLARE's channel 'aux_communication'" in journal
    assert "stopped by an error" not in journal


@pytest.mark.parametrize(
    ("sender", "headers", "due"),
    [
        ("server", {}, True),
        ("server", {StreamHeaderKey.PAYLOAD_ENCODING: "fobs"}, False),
        ("server", {StreamHeaderKey.SEQUENCE: 3}, False),
        ("server", {StreamHeaderKey.SEQUENCE: True}, False),
        ("server", {StreamHeaderKey.CHANNEL: gate.CHANNEL, StreamHeaderKey.TOPIC: gate.TOPIC}, False),
        ("server", {MessageHeaderKey.CHANNEL: gate.CHANNEL, MessageHeaderKey.TOPIC: gate.TOPIC}, False),
        ("server", {MessageHeaderKey.MSG_TYPE: MessageType.REPLY, MessageHeaderKey.CHANNEL: "admin"}, True),
        ("server", {MessageHeaderKey.CHANNEL: "admin", MessageHeaderKey.TOPIC: "sys.shell"}, False),
        ("server", {StreamHeaderKey.CHANNEL: "admin", StreamHeaderKey.TOPIC: "sys.shell"}, False),
        ("server", {MessageHeaderKey.CHANNEL: "cellnet.channel", MessageHeaderKey.TOPIC: "bulk"}, False),
        ("server", {MessageHeaderKey.CHANNEL: "cellnet.channel", MessageHeaderKey.TOPIC: "bye"}, True),
        ("server", {MessageHeaderKey.ORIGIN: "cedar"}, False),
        ("server", {MessageHeaderKey.FROM_CELL: "cedar"}, False),
        ("server", {MessageHeaderKey.DESTINATION: "cedar"}, False),
        ("cedar", {}, False),
    ],
)
def test_a_site_accepts_only_messages_of_its_coordinator_about_this_federation(
    sender: str, headers: dict[str, object], due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {
        MessageHeaderKey.ORIGIN: "server",
        MessageHeaderKey.FROM_CELL: "server",
        MessageHeaderKey.DESTINATION: "birch",
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
        MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
        StreamHeaderKey.CHANNEL: CellChannel.RETURN_ONLY,
        StreamHeaderKey.PAYLOAD_ENCODING: "bytes",
        StreamHeaderKey.SEQUENCE: 2,
        StreamHeaderKey.STREAM_ID: 9,
    }
    monkeypatch.setenv(setup.LIMIT, str(2**20))
    assert gate.is_accepted(CellMessage({**usual, **headers}, b"x"), sender, "birch") is due


def test_a_coordinator_takes_few_and_small_pieces_from_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished streams could occupy all of FLARE's threads, and their pieces all memory."""
    monkeypatch.setenv(setup.LIMIT, str(2**20))

    def task(sender: str, eos: bool) -> SimpleNamespace:
        return SimpleNamespace(origin=sender, eos=eos, failed=False)

    begun = {("cedar", number): task("cedar", eos=False) for number in range(30)}
    begun |= {("birch", number): task("birch", eos=True) for number in range(100, 130)}  # FLARE forgets them later
    monkeypatch.setattr(gate.RxTask, "rx_task_map", begun)

    def is_due(stream: int, payload: bytes = b"x", sender: str = "birch") -> bool:
        headers = {
            **dict.fromkeys((MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL), sender),
            MessageHeaderKey.DESTINATION: "server",
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
            StreamHeaderKey.CHANNEL: gate.CHANNEL,
            StreamHeaderKey.TOPIC: gate.TOPIC,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.STREAM_ID: stream,
        }
        return gate.is_accepted(CellMessage(headers, payload), sender, "server")

    assert not is_due(77, sender="cedar")
    for stream in range(8):
        assert is_due(stream)
        begun["birch", stream] = task("birch", eos=False)
    assert not is_due(8)
    assert is_due(7)  # of one that has begun
    assert is_due(7, b"x" * 2**20)
    assert not is_due(7, b"x" * 1_200_000)


def test_only_the_coordinator_listens_and_on_one_port(
    server: Party, folder: Path, as_agent: Callable[[Kit, str], "subprocess.Popen[bytes]"]
) -> None:
    """FLARE by itself opens a second port, on loopback and without certificates, for child processes."""
    (kit := read_kit(folder / "birch")).path.joinpath("up").unlink(missing_ok=True)
    agent = as_agent(kit, "Idler")
    try:
        wait_for((kit.path / "up").exists, "birch's start")
        assert listening(agent.pid) == []
        assert not loads_torch(agent.pid)
    finally:
        supervise.end(agent)
    assert server.process is not None
    assert listening(server.pid("process")) == [server.kit.agreement.port]
    assert not loads_torch(server.process.pid)  # the supervisor


def loads_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def listening(pid: int) -> list[int]:
    """The ports that a process listens on."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry))
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
    ]
    return sorted(
        {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}
    )


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_policies_of_every_party(tmp_path: Path) -> None:
    kits.make_kits(write_sites(tmp_path / "sites.toml"), tmp_path / "kits")
    for party in (COORDINATOR, *NAMES):
        kit = read_kit(tmp_path / "kits" / party)
        setup.prepare(kit)
        workspace = setup.workspace(kit)
        local = workspace / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert resources["class_allow_list"] == ["factorized_fl.silo.transport.flare.components"]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert not resources["allow_log_streaming"]
        assert not any("launcher" in part["id"] or "log" in part["id"] for part in resources["components"])
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert {right for role in rights.values() for right in role.values()} == {"none"}
        assert not list(kit.path.rglob("*.sh"))
        assert not list(workspace.rglob("*.key"))  # one copy of it is enough
    client = json.loads((workspace / "startup" / "fed_client.json").read_text())
    assert client["client"]["connection_security"] == "mtls"


def marking(mark: Path) -> str:
    """Code that leaves a mark where it runs."""
    return f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"


def test_nothing_in_a_kit_decides_which_code_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration in either folder and modules on any search path of Python or FLARE are not used."""
    shutil.copytree(folder / "cedar", tmp_path / "kit", ignore=shutil.ignore_patterns("workspace"))
    kit, mark = read_kit(tmp_path / "kit"), tmp_path / "mark"
    evil = {"components": [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}]}
    for name in ("flare", "workspace"):
        for path in ("local/resources.json", "local/x__p_resources.json", "startup/x__resources.json"):
            (kit.path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (kit.path / name / path).write_text(json.dumps({"format_version": 2, **evil}))
        (kit.path / name / "local" / "custom").mkdir()
    for place in (kit.path, kit.path / "workspace", kit.path / "workspace" / "local" / "custom"):
        for module in ("queue", "torch", "nvflare", "sitecustomize"):
            (place / f"{module}.py").write_text(marking(mark))
    workspace = setup.workspace(kit)
    for file in setup.credentials(kit):
        shutil.copy(file, workspace / "startup")
    monkeypatch.chdir(kit.path)  # as the kit's README has it: ffl join .
    agent = run_agent(kit)
    try:
        wait_for(lambda: "cannot connect" in flare_log(kit) or "Connector" in flare_log(kit), "the agent's start")
    finally:
        supervise.end(agent)
    made = {str(path.relative_to(workspace)) for path in workspace.rglob("*.json")}
    assert {name for name in made if not name.startswith("log")} == {
        "startup/fed_client.json",
        "local/resources.json",
        "local/authorization.json",
        "local/log_config.json",
    }
    assert not mark.exists(), flare_log(kit)


def test_a_trainer_takes_no_module_from_the_folder_it_runs_in(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(marking(tmp_path / "mark") + "raise SystemExit")
    kit = read_kit(folder / "cedar")
    trainer = Trainer(kit, Journal(kit))

    def end(meanwhile: object) -> Message:
        assert trainer.process is not None
        trainer.process.communicate(timeout=PATIENCE)
        return Message("hello", kit.agreement.id)

    monkeypatch.setattr(trainer, "_next", end)
    monkeypatch.chdir(tmp_path)
    trainer.hello()
    assert not (tmp_path / "mark").exists()
