"""A small server for the page of a running run, for browsers on this machine.

It listens on 127.0.0.1 only and answers only requests for that host name, so that no foreign web page can read it
through the browser (DNS rebinding). It serves the page and its document, and accepts no input.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from factorized_fl.core.errors import UserError
from factorized_fl.report.collect import Document, collect, make_document
from factorized_fl.report.page import render_page
from factorized_fl.results.reading import check_folder, is_run
from factorized_fl.results.schema import ANALYSIS, CONFIG, METRICS, SUMMARY

_WATCHED = (CONFIG, METRICS, SUMMARY, ANALYSIS)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """A server for one folder's page, whose document is collected again only after the folder's files have changed."""

    daemon_threads = True

    def __init__(self, path: Path, port: int = 0) -> None:
        self.path = path
        self.made: tuple[object, Document] | None = None  # the state of the files, and the document made from them
        self.lock = threading.Lock()
        self.last_request = 0.0
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"Cannot listen on port {port} ({error.strerror}): choose another --port.") from None

    def document(self) -> Document:
        """Return the current document; an empty one while there is nothing to show."""
        with self.lock:
            state = self._state()
            if self.made is None or self.made[0] != state:
                document = make_document(f"{self.path.resolve().name} · waiting", live=True)
                if state:
                    try:
                        document = collect([self.path], live=True)
                    except UserError as error:
                        document["notes"] = [str(error)]
                self.made = (state, document)
            return self.made[1]

    def _state(self) -> list[tuple[str, int, int]]:
        """Return the sizes and times of the files that grow or appear."""
        folders = [self.path, *sorted(child for child in self.path.glob("*") if is_run(child))]
        found = []
        for file in [folder / name for folder in folders for name in _WATCHED]:
            with suppress(OSError):
                stat = file.stat()
                found.append((str(file), stat.st_size, stat.st_mtime_ns))
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a browser closed; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "ffl", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page or its document."""
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            self._answer(403, "text/plain", b"This page is for this machine only.\n")
        elif self.path == "/":
            self._answer(200, "text/html", render_page(self.server.document()).encode())
        elif self.path == "/document.json":
            content = json.dumps(self.server.document(), allow_nan=False).encode()
            tag = f'"{sha256(content).hexdigest()[:16]}"'
            known = self.headers.get("If-None-Match") == tag
            self._answer(304 if known else 200, "application/json", b"" if known else content, {"ETag": tag})
            self.server.last_request = time.monotonic()
        else:
            self._answer(404, "text/plain", b"Not found.\n")

    def _answer(self, status: int, kind: str, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**headers, **_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Print nothing: the terminal belongs to the run."""


def page_server(path: Path, port: int = 0) -> PageServer:
    """Return a server for an existing folder, ready for `serve_forever`."""
    check_folder(path)
    return PageServer(path, port)


@contextmanager
def watching(path: Path, port: int = 0, patience: float = 5.0) -> Iterator[str]:
    """Serve a run's page while the context lasts, and up to `patience` seconds longer if a browser is connected."""
    server = PageServer(path, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.url
        _linger(server, patience)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _linger(server: PageServer, patience: float) -> None:
    """Wait until a browser that was connected a moment ago has fetched the final document."""
    ended = time.monotonic()
    while time.monotonic() - ended < patience and ended - server.last_request < patience:
        if server.last_request > ended:
            return
        time.sleep(0.1)
