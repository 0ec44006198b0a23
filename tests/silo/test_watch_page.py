"""The live page of a party in a real browser."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorized_fl.core.loopback import LoopbackServer
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.supervise import exclusive_use
from factorized_fl.silo.watch import party_server
from tests.browser import Watched
from tests.silo.parties import kits_of, trio_config
from tests.silo.processes import free_port
from tests.silo.test_watch import EVIL, coordinate, row, take_part

pytestmark = pytest.mark.xdist_group("browser-of-a-party")


@pytest.fixture
def kits(tmp_path: Path) -> dict[str, Kit]:
    return kits_of(tmp_path, trio_config())


@pytest.fixture
def running(kits: dict[str, Kit]) -> Iterator[Kit]:
    kit = coordinate(kits)
    with exclusive_use(kit):
        yield kit


def start(kit: Kit, port: int = 0) -> LoopbackServer:
    server = party_server(kit, port)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def stop(server: LoopbackServer) -> None:
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_coordinators_page(chromium: Any, running: Kit, width: int, scheme: str) -> None:
    """Nothing is cut off at the width of a phone, and a name in the journal stays text."""
    server = start(running)
    with Watched(chromium, offline=False, width=width, scheme=scheme) as tab:
        tab.page.goto(server.url)
        assert tab.page.inner_text("h1") == "2 of 3 rounds done: waiting for birch."
        sites = tab.page.inner_text("#sites-table")
        assert all(name in sites for name in ("aster", "birch", "cedar", "not connected"))
        assert "2 of 3" in tab.page.inner_text("#overview table")
        assert EVIL in tab.page.inner_text("#journal-lines")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.page.get_attribute("#rounds", "value") == "2"
        assert tab.complaints == []
        assert all(request.startswith(server.url) for request in tab.requests)
    stop(server)


def watch(kit: Kit) -> tuple["subprocess.Popen[str]", str]:
    """The command, and the address that it prints."""
    words = ["watch", str(kit.path), "--port", str(PORTS.setdefault(kit.path, free_port()))]
    command = subprocess.Popen([sys.executable, "-m", "factorized_fl.cli", *words], stdout=subprocess.PIPE, text=True)
    line = command.stdout.readline()
    return command, line.split(" at ")[1].split()[0]


PORTS: dict[Path, int] = {}


def test_the_page_follows_the_federation_and_comes_back_after_its_server(chromium: Any, running: Kit) -> None:
    command, url = watch(running)
    try:
        with Watched(chromium, offline=False) as tab:
            tab.page.goto(url)
            Journal(running)("a new line")
            tab.page.locator("#journal-lines", has_text="a new line").wait_for()
            command.kill()
            tab.page.locator("#live", has_text="trying again").wait_for()
            command.wait()
            command, again = watch(running)
            assert again == url
            tab.page.locator("#live:text-is('live')").wait_for()
    finally:
        command.kill()
        command.wait()


def test_the_page_of_a_site(chromium: Any, kits: dict[str, Kit]) -> None:
    kit = take_part(kits)
    server = start(kit)
    with exclusive_use(kit), Watched(chromium, offline=False) as tab:
        tab.page.goto(server.url)
        assert tab.page.inner_text("h1") == "2 of 3 rounds done: at work on round-3."
        assert "Effective peers\t2.0" in tab.page.inner_text("#overview table")
        assert tab.page.locator("#sites-table").count() == 0
        assert tab.page.locator("[data-figure=accuracy] svg path").count() > 0
        assert tab.complaints == []
    stop(server)


def test_metrics_that_sites_report_name_the_site(chromium: Any, running: Kit) -> None:
    lines = (running.run / "metrics.jsonl").read_text()
    clinical = '{"brier": [0.1, 0.05, 0.2, 40], "auroc": [[0.9, 0.8, 0.95, 40], [null, null, null, 40]]}'
    (running.run / "metrics.jsonl").write_text(
        f'{lines}{{"round": 3, "client": 0, "domain": "aster", "accuracy": null, "clinical": {clinical}}}\n'
    )
    server = start(running)
    with Watched(chromium, offline=False) as tab:
        tab.page.goto(server.url)
        rows = tab.page.inner_text("#reported tbody").splitlines()
        assert rows == [
            "aster\tbrier\tall\t0.100 (0.050 to 0.200)\t40",
            "aster\tauroc\tclass 1\t0.900 (0.800 to 0.950)\t40",
            "aster\tauroc\tclass 2\tundefined\t40",
        ]
        assert tab.complaints == []
    stop(server)


def test_rows_of_the_status_have_what_the_page_shows(running: Kit) -> None:
    """The synthetic rows of these tests have the keys that the coordinator writes."""
    from factorized_fl.silo.mailbox import Mailbox
    from factorized_fl.silo.memory import Memory
    from factorized_fl.silo.overview import site_rows

    mailbox = Mailbox(running.agreement.id, running.agreement.sites)
    (first, *_) = site_rows(Memory(running.config, running.agreement.sites), mailbox, {}, {}, [])
    assert first.keys() == row("aster").keys()
    assert first["waited_for"]  # before the first round: for its connection
