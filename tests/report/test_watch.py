import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report.watch import PageServer, page_server, watching
from tests.report.synthetic import add_round, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", rounds=2, complete=False)


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    with page_server(run) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.getheaders())


def test_serves_the_page_and_its_document(server: PageServer) -> None:
    status, page, headers = ask(server)
    assert status == 200
    assert b"connect-src 'self'" in page
    assert headers["Content-Type"].startswith("text/html")
    assert "Access-Control-Allow-Origin" not in headers
    status, document, _ = ask(server, "/document.json", Host=f"localhost:{server.server_port}")
    assert status == 200
    assert json.loads(document)["runs"][0]["done"] == 2


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
def test_a_foreign_host_is_refused(server: PageServer, host: str) -> None:
    for path in ("/", "/document.json"):
        status, content, _ = ask(server, path, Host=host.format(port=server.server_port))
        assert status == 403
        assert b"client" not in content


@pytest.mark.parametrize("path", ["/config.toml", "/metrics.jsonl", "/../config.toml", "/document.json/..", "/?x"])
def test_no_other_file_is_served(server: PageServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_read_only(server: PageServer, method: str) -> None:
    assert ask(server, "/", method)[0] == 501


def test_listens_on_this_machine_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_new_round_changes_the_document_and_its_tag(server: PageServer, run: Path) -> None:
    _, _, headers = ask(server, "/document.json")
    assert ask(server, "/document.json", If_None_Match=headers["ETag"])[:2] == (304, b"")
    add_round(run, 3, [60] * 4)
    status, content, newer = ask(server, "/document.json", If_None_Match=headers["ETag"])
    assert status == 200
    assert json.loads(content)["runs"][0]["done"] == 3
    assert newer["ETag"] != headers["ETag"]


def test_waits_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    with watching(tmp_path / "later", patience=0) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/document.json")
        assert json.loads(connection.getresponse().read())["runs"] == []
        write_run(tmp_path / "later")
        connection.request("GET", "/document.json")
        assert len(json.loads(connection.getresponse().read())["runs"]) == 1
        connection.close()


def test_what_is_not_there_or_taken_is_one_sentence(tmp_path: Path, server: PageServer) -> None:
    with pytest.raises(UserError, match="does not exist"):
        page_server(tmp_path / "nowhere")
    with pytest.raises(UserError, match="choose another port="):
        page_server(tmp_path, server.server_port)
