"""Downloads from a local imitation of the hub, which answers the actual calls of `huggingface_hub`."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from factorized_fl.core.errors import UserError
from factorized_fl.data.fetch import fetch_dataset
from factorized_fl.data.sources import load

REPO, COMMIT = "uoft-cs/cifar10", "c" * 40


class Hub:
    """Serves `files` of one repository, on request with damaged contents."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.tamper: dict[str, bytes] = {}
        self.downloads: list[str] = []
        self.tokens: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.tokens += request.headers.get_all("Authorization") or []
        if path == f"/api/datasets/{REPO}":
            self.send(request, json.dumps(self.listing()).encode())
            return
        name = path.removeprefix(f"/datasets/{REPO}/resolve/{COMMIT}/")
        if name not in self.files:
            request.send_error(404)
            return
        if request.command == "GET":
            self.downloads.append(name)
        etag = hashlib.sha256(self.files[name]).hexdigest()
        self.send(request, self.tamper.get(name, self.files[name]), ETag=f'"{etag}"', **{"X-Repo-Commit": COMMIT})

    def listing(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "b" * 40,
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130},
            }
            for name, data in self.files.items()
        ]
        return {"id": REPO, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}

    def send(self, request: BaseHTTPRequestHandler, body: bytes, **headers: str) -> None:
        request.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)


@pytest.fixture
def hub(tmp_path, write_parquet, colours, monkeypatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Hub()
    for part, images in (("train-00000-of-00001", colours[:4]), ("test-00000-of-00001", colours[4:])):
        file = write_parquet(tmp_path / "origin" / f"{part}.parquet", images, [0, 1, 2, 0][: len(images)])
        served.files[f"plain_text/{part}.parquet"] = file.read_bytes()
    served.files |= {"README.md": b"read me", "plain_text/extra-0.parquet": b"x", "other/train-0.parquet": b"x"}
    yield served
    served.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


BOTH = ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]


def test_the_right_files_arrive_and_can_be_loaded(hub, own_cache) -> None:
    told: list[tuple[str, int, int]] = []
    folder = fetch_dataset("cifar10", endpoint=hub.endpoint, on_progress=lambda *each: told.append(each))
    assert folder == own_cache / "hub" / "cifar10"
    assert names(folder) == BOTH
    assert [file for file, _, _ in told] == BOTH
    assert told[-1][1] == told[-1][2] == sum((folder / name).stat().st_size for name in BOTH)
    assert load("cifar10")[0].images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert hub.tokens == []


def test_the_second_call_downloads_nothing(hub, tmp_path) -> None:
    fetch_dataset("cifar10", tmp_path / "data", endpoint=hub.endpoint)
    assert len(hub.downloads) == 2
    assert names(fetch_dataset("cifar10", tmp_path / "data", endpoint=hub.endpoint)) == BOTH
    assert len(hub.downloads) == 2


def test_a_spoilt_file_is_fetched_again(hub, tmp_path) -> None:
    folder = fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)
    spoilt = folder / BOTH[0]
    good = spoilt.read_bytes()
    spoilt.write_bytes(good[:-1] + b"?")
    fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)
    assert spoilt.read_bytes() == good
    assert hub.downloads[2:] == [f"plain_text/{BOTH[0]}"]


def test_corrupted_bytes_are_refused_and_deleted(hub, tmp_path) -> None:
    name = f"plain_text/{BOTH[1]}"
    hub.tamper[name] = hub.files[name][:-1] + b"?"
    with pytest.raises(UserError, match=r"train-00000-of-00001\.parquet arrived damaged"):
        fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)
    assert names(tmp_path / "cifar10") == BOTH[:1]
    hub.tamper.clear()
    assert names(fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)) == BOTH


def test_a_short_file_is_refused(hub, tmp_path) -> None:
    name = f"plain_text/{BOTH[0]}"
    hub.tamper[name] = hub.files[name][:-10]
    with pytest.raises(UserError, match="cifar10"):
        fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)
    assert not (tmp_path / "cifar10" / BOTH[0]).exists()


def test_a_hub_that_is_gone(hub, tmp_path) -> None:
    hub.close()
    with pytest.raises(UserError, match=f"cifar10 could not be fetched from {hub.endpoint} .*check the network"):
        fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)


def test_a_repository_that_is_gone(hub, tmp_path) -> None:
    with pytest.raises(UserError, match="mnist could not be fetched"):
        fetch_dataset("mnist", tmp_path, endpoint=hub.endpoint)


def test_a_repository_without_the_files(hub, tmp_path) -> None:
    hub.files = {"README.md": b"moved"}
    with pytest.raises(UserError, match="no parquet files in 'plain_text'"):
        fetch_dataset("cifar10", tmp_path, endpoint=hub.endpoint)


def test_without_the_library_a_hint_is_given(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r'pip install "factorized-fl\[hub\]"'):
        fetch_dataset("cifar10", tmp_path)


def test_an_unknown_name_lists_the_known(tmp_path) -> None:
    with pytest.raises(UserError, match=r"'cifar12'.*Known: cifar10, cifar100, mnist, svhn"):
        fetch_dataset("cifar12", tmp_path)
