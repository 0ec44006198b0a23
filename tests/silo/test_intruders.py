"""Connections that the transport refuses are counted in the coordinator's journal."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import intruders
from factorized_fl.silo.journal import Journal, last_lines
from tests.silo.parties import kits_of, trio_config

LOG = """\
I1119 02:38:05.4 10199 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: \
PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context
I1119 02:38:05.5 10198 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: \
CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate
ordinary line
E conn_manager - CommError: connection CN3 authenticated as 'aster' but claimed endpoint 'birch' requires 'birch'
"""


def test_refused_connections_are_counted_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = kits_of(tmp_path, trio_config())[COORDINATOR]
    journal = Journal(kit)
    log = kit.logs / "process.txt"
    log.write_text("Handshake failed: PEER_DID_NOT_RETURN_A_CERTIFICATE of an earlier start\n")
    watcher = intruders.RefusedConnections(kit, journal)
    with log.open("a") as file:
        file.write(LOG + "Handshake failed, in a line that is not comp")
    watcher.look()
    assert [line[20:] for line in last_lines(kit)] == [
        "refused a connection, as no certificate was shown",
        "refused a connection, as the certificate is expired, not yet valid or of another authority",
        "refused a connection, as the certificate of aster was shown under the name birch",
    ]
    with log.open("a") as file:
        file.write("lete\n" + LOG * 500)
    watcher.look()
    assert len(last_lines(kit)) == 4  # each known reason waits for its minute
    monkeypatch.setattr(intruders, "_EVERY", 0.0)
    watcher.look()
    assert last_lines(kit)[-1].endswith("(500 times)")
    assert len(last_lines(kit)) == 7


def test_a_party_may_open_as_many_files_as_its_user_may() -> None:
    """Idle connections of strangers use up the usual 1,024."""
    pytest.importorskip("nvflare", reason="FLARE is not installed")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)"
        "[1]))\nfrom factorized_fl.silo.transport.flare import process, gate; process.allow_many_connections()\n"
        "process.adapt_flare(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "print(dict(gate.grpc_driver.GRPC_DEFAULT_OPTIONS)['grpc.server_handshake_timeout_ms'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(most), "10000"], done.stderr
