"""A small web server for programs and browsers on this machine.

It listens on 127.0.0.1 only and answers only requests for that host name, so that no foreign web page can read it
through the browser (DNS rebinding). It accepts no input.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from factorized_fl.core.errors import UserError

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Reply:
    """The answer to a request; with `tagged`, a browser that has this content receives a short notice instead."""

    content: bytes
    kind: str = "text/plain"
    status: int = 200
    tagged: bool = False


class LoopbackServer(ThreadingHTTPServer):
    """A server that answers each path with what `reply` returns for it, and with "not found" where that is None."""

    daemon_threads = True

    def __init__(self, reply: Callable[[str], Reply | None], port: int = 0) -> None:
        self.reply = reply
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"Cannot listen on port {port} ({error.strerror}): choose another --port.") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a browser closed; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    server_version, sys_version = "ffl", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer a request for this machine."""
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            self._answer(Reply(b"This page is for this machine only.\n", status=403))
        else:
            self._answer(self.server.reply(self.path) or Reply(b"Not found.\n", status=404))

    def _answer(self, reply: Reply) -> None:
        headers = {"Content-Type": f"{reply.kind}; charset=utf-8"}
        status, content = reply.status, reply.content
        if reply.tagged:
            headers["ETag"] = f'"{sha256(content).hexdigest()[:16]}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                status, content = 304, b""
        headers["Content-Length"] = str(len(content))
        self.send_response(status)
        for name, value in {**headers, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Print nothing: the terminal belongs to the command."""
