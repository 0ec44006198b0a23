"""A small server that shows the page of a running run to browsers on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from factorized_fl.core.errors import UserError
from factorized_fl.core.loopback import LoopbackServer, Reply
from factorized_fl.report.collect import Document, collect, make_document
from factorized_fl.report.page import render_page
from factorized_fl.results.reading import check_folder, is_run
from factorized_fl.results.schema import ANALYSIS, CONFIG, METRICS, SUMMARY

_WATCHED = (CONFIG, METRICS, SUMMARY, ANALYSIS)


class PageServer(LoopbackServer):
    """A server for one folder's page, whose document is collected again only after the folder's files have changed."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self.path = path
        self.made: tuple[object, Document] | None = None  # the state of the files, and the document made from them
        self.lock = threading.Lock()
        self.last_request = 0.0
        super().__init__(self._reply, port)

    def _reply(self, path: str) -> Reply | None:
        """Return the page, its document, or None."""
        if path == "/":
            return Reply(render_page(self.document()).encode(), "text/html")
        if path == "/document.json":
            self.last_request = time.monotonic()
            return Reply(json.dumps(self.document(), allow_nan=False).encode(), "application/json", tagged=True)
        return None

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
