"""Checks before a party starts: the kit, the port, the connection to the coordinator."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from factorized_fl.core.errors import Busy, UserError
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import preflight, supervise
from factorized_fl.silo.agreement import Kit, read_kit
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.preflight import ConnectionCheck, check_kit, check_port, connection_problem
from factorized_fl.silo.status import read_status
from factorized_fl.silo.transport import network
from tests.silo.parties import kits_of, trio_config
from tests.silo.test_kits import write

pytest.importorskip("nvflare")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two federations with the same site names, each with its own authority."""
    from factorized_fl.silo.kits import make_kits

    root = tmp_path_factory.mktemp("federations")
    for name in ("one", "other"):
        make_kits(write(root / "sites.toml"), root / name)
    return {name: root / name for name in ("one", "other")}


def copy(made: dict[str, Path], party: str, to: Path, port: int | None = None) -> Kit:
    shutil.copytree(made["one"] / party, to)
    if port is not None:
        text = (to / "federation.toml").read_text()
        (to / "federation.toml").write_text(text.replace("port = 8443", f"port = {port}"))
    return read_kit(to)


def test_another_partys_certificate_is_named(made: dict[str, Path], tmp_path: Path) -> None:
    kit = copy(made, "aster", tmp_path / "kit")
    for name in ("client.crt", "client.key"):
        shutil.copy(made["one"] / "birch" / "flare" / "startup" / name, kit.path / "flare" / "startup")
    with pytest.raises(UserError, match="The kit is that of aster, but its certificate is that of birch"):
        check_kit(kit)


def test_a_key_without_read_permission_is_not_called_damaged(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = copy(made, "aster", tmp_path / "kit")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "client.key")  # root may read everything
    with pytest.raises(UserError, match=r"You may not read '.*client\.key'"):
        check_kit(kit)


@pytest.mark.parametrize("party", [COORDINATOR, "aster"])
def test_a_complete_kit_passes_and_a_missing_file_is_named(party: str, made: dict[str, Path], tmp_path: Path) -> None:
    kit = copy(made, party, tmp_path / "kit")
    check_kit(kit)
    kind = "server" if party == COORDINATOR else "client"
    for name in (f"startup/{kind}.key", "startup/rootCA.pem", f"startup/{kind}.crt"):
        file = kit.path / "flare" / name
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(UserError, match=f"has lost 'flare/{name}'"):
            check_kit(kit)
        file.touch(0o600)
        file.write_bytes(content)
    check_kit(kit)


def test_foreign_and_expired_certificates_are_refused(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = copy(made, "aster", tmp_path / "kit")
    startup = kit.path / "flare" / "startup"
    whole = {name: (startup / name).read_bytes() for name in ("client.key", "rootCA.pem", "client.crt")}
    for name, source, words in (
        ("client.key", made["one"] / "birch", "is not the key of"),
        ("rootCA.pem", made["other"] / "aster", "do not belong together"),
    ):
        shutil.copy(source / "flare" / "startup" / name, startup / name)
        with pytest.raises(UserError, match=words):
            check_kit(kit)
        (startup / name).write_bytes(whole[name])
    (startup / "client.crt").write_text("nonsense")
    with pytest.raises(UserError, match="do not belong together"):
        check_kit(kit)
    (startup / "client.crt").write_bytes(whole["client.crt"])

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(days=20_000)

    monkeypatch.setattr(preflight, "datetime", Later)
    with pytest.raises(
        UserError, match=r"certificates are valid from .* to .* and it is .* here.* clock if it is wrong"
    ):
        check_kit(kit)


@pytest.mark.parametrize(
    "place",
    [
        "log/journal.txt",
        "log",
        "run",
        "flare/startup/client.key",
        "run/mixing/x",
        "run/checkpoint.safetensors",
        "site.toml.part",
        "status.json",
    ],
)
def test_a_kit_with_a_link_is_refused(place: str, tmp_path: Path) -> None:
    kit = kits_of(tmp_path / "kits", trio_config())["aster"]
    (tmp_path / "bashrc").write_text("")
    link = kit.path / place
    link.parent.mkdir(exist_ok=True, parents=True)
    link.symlink_to(tmp_path / "bashrc")
    with pytest.raises(UserError, match="is a link, and a kit holds none"):
        preflight.refuse_links(kit)
    if place.endswith("journal.txt"):
        Journal(kit)("touch mark")
        assert (tmp_path / "bashrc").read_text() == ""


@pytest.mark.parametrize("name", ["run", "log", "ended", "noise-seed", "model"])
def test_a_new_kit_with_results_in_it_is_refused(name: str, tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    (kit.path / "run").mkdir()  # a disk of its own
    preflight.refuse_leftovers(kit)
    (kit.path / "run").rmdir()
    (kit.path / name).touch()
    with pytest.raises(UserError, match=f"holds '{name}', which no new kit does"):
        preflight.refuse_leftovers(kit)


def test_a_port_in_use_is_refused(made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PATIENCE", 0.0)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        other.bind(("127.0.0.1", 0))
        other.listen()
        kit = copy(made, COORDINATOR, tmp_path / "taken", other.getsockname()[1])
        with pytest.raises(UserError, match=r"Port \d+ cannot be opened \(Address already in use\)"):
            check_port(kit)
    check_port(kit)


def test_connection_problems_are_logged_until_the_connection_works(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First no listener, then the coordinator of another federation, then the right one."""
    monkeypatch.setattr(preflight, "_EVERY", 0.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        kit = copy(made, "aster", tmp_path / "kit", listener.getsockname()[1])
        way = ConnectionCheck(kit, Journal(kit))
        way.look()
        way.look()  # is told once
        listener.listen()
        for federation, wanted in (("other", "is not this federation's"), ("one", "")):
            startup = made[federation] / COORDINATOR / "flare" / "startup"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(startup / "server.crt", startup / "server.key")
            answer = threading.Thread(target=greet, args=(listener, context))
            answer.start()
            way.look()
            answer.join()
            assert way.open == (wanted == "")
            if wanted:
                assert wanted in journal_path(kit).read_text()
    lines = journal_path(kit).read_text().splitlines()
    for line, words in zip(lines, ("cannot be reached", "is not this federation's", "answers now"), strict=True):
        assert words in line
    status = read_status(kit)
    assert status is not None
    assert status["note"] == "waiting for the coordinator"
    assert "cannot be reached" in connection_problem(kit)  # gone again


def greet(listener: socket.socket, context: ssl.SSLContext) -> None:
    line, _ = listener.accept()
    with line, contextlib.suppress(OSError):
        context.wrap_socket(line, server_side=True).close()


def test_a_party_runs_while_a_process_holds_its_lock(made: dict[str, Path], tmp_path: Path) -> None:
    """A file that a killed supervisor left behind does not count."""
    kit = copy(made, "aster", tmp_path / "kit")
    assert not supervise.is_running(kit)
    code = (
        "import sys, time; from pathlib import Path; from factorized_fl.silo import supervise, agreement\n"
        "with supervise.exclusive_use(agreement.read_kit(Path(sys.argv[1]))): print(flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(kit.path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert supervise.is_running(kit)
        with pytest.raises(Busy, match="aster runs already"):
            supervise.supervise(kit)
    finally:
        other.kill()
        other.wait()
    assert (kit.path / "lock").exists()
    assert not supervise.is_running(kit)


def test_a_start_makes_no_key(made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's configuration is written without a certificate authority and keys for all parties."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from nvflare.lighter.impl import cert

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a key was made")

    monkeypatch.setattr(rsa, "generate_private_key", fail)
    monkeypatch.setattr(cert, "generate_keys", fail)
    for party in (COORDINATOR, "aster"):
        network().prepare(copy(made, party, tmp_path / party))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_kit_that_cannot_be_written_to(made: dict[str, Path], tmp_path: Path) -> None:
    kit = copy(made, "aster", tmp_path / "kit")
    kit.path.chmod(0o500)
    with pytest.raises(UserError, match="make it writable"):
        Journal(kit)


def test_a_key_that_other_users_may_read_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    kit = copy(made, "aster", tmp_path / "kit")
    key = kit.path / "flare" / "startup" / "client.key"
    for mode, refused in ((0o644, True), (0o660, True), (0o440, False), (0o600, False)):
        key.chmod(mode)
        if refused:
            with pytest.raises(UserError, match=rf"mode {mode:o}\): chmod 600 .*client\.key"):
                check_kit(kit)
        else:
            check_kit(kit)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy:3128"}, ("http://proxy:3128", "https_proxy")),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "elsewhere,.example.org"}, None),
        ({"http_proxy": "a:1", "grpc_proxy": "b:2"}, ("b:2", "grpc_proxy")),
    ],
)
def test_a_proxy_of_the_environment_is_found(
    variables: dict[str, str], wanted: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert preflight.proxy_for("coordinator.example.org") == wanted


@pytest.mark.parametrize("allows", [True, False])
def test_a_connection_is_tried_through_the_proxy(
    allows: bool, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is asked to connect; its refusal, or the address after that, is part of the sentence."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        kit = copy(made, "aster", tmp_path / "kit")

        def serve() -> None:
            line, _ = proxy.accept()
            with line:
                asked.append(line.recv(4096))
                line.sendall(b"HTTP/1.1 200 OK\r\n\r\n" if allows else b"HTTP/1.1 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        problem = connection_problem(kit)
        thread.join()
        ConnectionCheck(kit, Journal(kit))
    assert asked[0].startswith(b"CONNECT localhost:8443 HTTP/1.1\r\n")
    assert ("403 Forbidden': add localhost to no_proxy" in problem) is not allows
    written = journal_path(kit).read_text()
    assert "connects through the proxy 127.0.0.1:" in written
    assert "secret" not in written
