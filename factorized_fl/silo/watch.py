"""A party's live page, health and metrics, for browsers and programs on the same machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

from factorized_fl.core.errors import UserError
from factorized_fl.core.loopback import LoopbackServer, Reply
from factorized_fl.report.single_file import page_asset, single_file
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.live import check_now, live_document, prometheus_text

_SCRIPTS = ("tools.js", "charts.js", "parts.js")  # of the report's page
_PROMETHEUS = "text/plain; version=0.0.4"


def party_page(kit: Kit) -> str:
    """Return the page with the state of the party at this moment; it asks its server for newer states."""
    document = live_document(kit)
    script = resources.files("factorized_fl.silo").joinpath("assets", "party.js").read_text(encoding="utf-8")
    scripts = [*map(page_asset, _SCRIPTS), script]
    return single_file(document["title"], document["note"], document, page_asset("page.css"), scripts, live=True)


def party_server(kit: Kit, port: int = 0) -> LoopbackServer:
    """Return a server of the page, /healthz, /readyz and /metrics, ready for `serve_forever`."""

    def reply(path: str) -> Reply | None:
        try:
            return _reply(kit, path)
        except UserError as error:  # a damaged file of the run directory
            return Reply(f"{error}\n".encode(), status=500)

    return LoopbackServer(reply, port)


def _reply(kit: Kit, path: str) -> Reply | None:
    if path == "/":
        return Reply(party_page(kit).encode(), "text/html")
    if path == "/document.json":
        return Reply(json.dumps(live_document(kit), allow_nan=False).encode(), "application/json", tagged=True)
    if path == "/healthz":
        return _health(check_now(kit), "ok")
    if path == "/readyz":
        return _health(check_now(kit, ready=True), "ready")
    if path == "/metrics":
        return Reply(prometheus_text(kit).encode(), _PROMETHEUS)
    return None


def _health(why: str, words: str) -> Reply:
    return Reply(f"{why}\n".encode(), status=503) if why else Reply(f"{words}\n".encode())


@contextmanager
def serving(kit: Kit, port: int | None) -> Iterator[str]:
    """Serve a party's page, health and metrics while the context lasts, and yield the address; nothing without port."""
    if port is None:
        yield ""
        return
    with party_server(kit, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
