"""What a party sees of its running federation: the document, health, Prometheus metrics and the server on loopback."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.journal import Journal
from factorized_fl.silo.live import check_now, live_document, prometheus_text
from factorized_fl.silo.mailbox import Mailbox
from factorized_fl.silo.messages import Message, pack
from factorized_fl.silo.status import write_status
from factorized_fl.silo.supervise import exclusive_use
from factorized_fl.silo.watch import party_server, serving
from tests.silo.parties import kits_of, trio_config

EVIL = "<img src=x onerror=alert(1)>"


def row(name: str, **changes: Any) -> dict[str, Any]:
    """A line of the coordinator's status."""
    usual = {"connected": True, "doing": "waiting", "images": 40, "strikes": 0, "peers": 1.5, "accuracy": None}
    counts = {"up_bytes": 1000, "down_bytes": 3000, "refused": 0, "waited_for": False, "shared": "received nothing"}
    return {"name": name, **usual, **counts, **changes}


def write_lines(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def coordinate(kits: dict[str, Kit], note: str = "waiting for answers", done: int = 2) -> Kit:
    """The coordinator's kit in the middle of a federation, in which only aster reports."""
    kit = kits["coordinator"]
    write_kit(kit)
    sites = [
        row("aster", accuracy=0.5, doing="answered"),
        row("birch", waited_for=True, doing="at work on round-3", peers=None),
        row("cedar", connected=False, doing="not connected", refused=4),
    ]
    write_status(kit, note, {"round": done + 1, "rounds": 3, "seconds_left": 12.0, "sites": sites})
    write_lines(
        kit.run / "timing.jsonl",
        *({"round": r, "seconds": 2.5, "from_others": {"aster": 0.25, "birch": 0.0}} for r in range(1, done + 1)),
    )
    records = [{"round": r, "client": 0, "domain": "aster", "accuracy": 0.25 * r} for r in range(1, done + 1)]
    records.append({"round": 1, "client": 1, "domain": "birch", "accuracy": None})
    write_lines(kit.run / "metrics.jsonl", *records)
    Journal(kit)(f"cedar: a name like {EVIL}")
    return kit


def take_part(kits: dict[str, Kit], note: str = "at work on round-3") -> Kit:
    """The kit of a site that has trained two rounds."""
    kit = kits["aster"]
    write_kit(kit)
    write_status(kit, note)
    usual = {"client": 0, "domain": "aster", "up_bytes": 500, "down_bytes": 700, "effective_peers": 2.0}
    write_lines(kit.run / "metrics.jsonl", *({"round": r, "accuracy": 0.25 * r, **usual} for r in (1, 2)))
    write_lines(
        kit.run / "timing.jsonl", *({"round": r, "seconds": 1.5, "from_others": {"aster": 0.25}} for r in (1, 2))
    )
    return kit


@pytest.fixture
def kits(tmp_path: Path) -> dict[str, Kit]:
    return kits_of(tmp_path, trio_config())


def test_the_coordinator_sees_its_sites(kits: dict[str, Kit]) -> None:
    kit = coordinate(kits)
    with exclusive_use(kit):
        seen = live_document(kit)
    assert (seen["done"], seen["rounds"], seen["seconds_left"]) == (2, 3, 12.0)
    assert [site["name"] for site in seen["sites"] if site["connected"]] == ["aster", "birch"]
    assert [site["name"] for site in seen["sites"] if site["waited_for"]] == ["birch"]
    assert (seen["up_bytes"], seen["down_bytes"]) == (3000, 9000)
    assert seen["accuracy"] == {"aster": [(1, 0.25), (2, 0.5)]}
    assert seen["current"]
    assert EVIL in seen["journal"][-1]


def test_a_dead_coordinator_has_no_connected_site(kits: dict[str, Kit]) -> None:
    seen = live_document(coordinate(kits))
    assert not seen["runs"]
    assert not any(site["connected"] or site["waited_for"] for site in seen["sites"])
    assert seen["seconds_left"] is None


def test_a_site_sees_itself_only(kits: dict[str, Kit]) -> None:
    kit = take_part(kits)
    with exclusive_use(kit):
        seen = live_document(kit)
    assert (seen["up_bytes"], seen["down_bytes"], seen["peers"]) == (1000, 1400, 2.0)
    assert seen["shared"] == "received something from other sites in 2 of 2 rounds, 25.0% on average"
    assert (seen["sites"], seen["reported"]) == ([], [])


def test_the_privacy_budget_is_shown_if_the_status_has_one(kits: dict[str, Kit]) -> None:
    kit = coordinate(kits)
    assert live_document(kit)["privacy"] is None
    write_status(kit, "complete", {"round": 3, "rounds": 3, "sites": [], "privacy": {"epsilon": 2.5, "delta": 1e-5}})
    assert live_document(kit)["privacy"] == {"epsilon": 2.5, "delta": 1e-5}
    assert "ffl_privacy_epsilon 2.5\n" in prometheus_text(kit)


def test_the_privacy_budget_is_that_of_the_last_rounds(kits: dict[str, Kit]) -> None:
    kit = coordinate(kits)
    spent = [
        {"round": r, "client": k, "domain": "x", "epsilon": e} for r, k, e in ((1, 0, 0.5), (1, 1, 0.9), (2, 0, 1.5))
    ]
    write_lines(kit.run / "metrics.jsonl", *spent)
    assert live_document(kit)["privacy"]["epsilon"] == 1.5


def samples(text: str) -> dict[str, float]:
    """The samples of Prometheus' text format; every metric must have its help and its type before it."""
    found: dict[str, float] = {}
    declared: set[str] = set()
    for line in text.splitlines():
        if line.startswith("#"):
            declared.add(line.split()[2])
            assert re.fullmatch(r"# (HELP \w+ .+|TYPE \w+ (counter|gauge))", line)
            continue
        name, value = re.fullmatch(r"(\w+(?:\{\w+=\"[^\"]*\"\})?) (\S+)", line).groups()
        assert name.partition("{")[0] in declared
        found[name] = float(value)
    return found


def test_prometheus_metrics_of_a_coordinator(kits: dict[str, Kit]) -> None:
    kit = coordinate(kits)
    with exclusive_use(kit):
        found = samples(prometheus_text(kit))
    assert found.pop("ffl_status_age_seconds") < 30
    assert found == {
        "ffl_up": 1,
        "ffl_ready": 1,
        "ffl_rounds_total": 2,
        "ffl_rounds_planned": 3,
        "ffl_round_seconds_total": 5.0,
        'ffl_bytes_total{direction="up"}': 3000,
        'ffl_bytes_total{direction="down"}': 9000,
        "ffl_sites": 3,
        "ffl_sites_connected": 2,
        "ffl_sites_waited_for": 1,
        'ffl_refused_messages_total{site="aster"}': 0,
        'ffl_refused_messages_total{site="birch"}': 0,
        'ffl_refused_messages_total{site="cedar"}': 4,
    }


def test_prometheus_metrics_of_a_site(kits: dict[str, Kit]) -> None:
    found = samples(prometheus_text(take_part(kits)))
    assert (found["ffl_up"], found["ffl_ready"], found["ffl_effective_peers"]) == (0, 0, 2)
    assert not any("sites" in name or "refused" in name for name in found)


def test_health_and_readiness_are_those_of_the_command(kits: dict[str, Kit]) -> None:
    """A party that is done counts as healthy although it does not run; tests/silo/test_health.py has the rest."""
    kit = take_part(kits, "the coordinator is out of reach")
    assert check_now(kit) == "it does not run"
    with exclusive_use(kit):
        assert check_now(kit) == ""
        assert check_now(kit, ready=True) == "the coordinator is out of reach"
    write_status(kit, "done")
    assert check_now(kit, ready=True) == ""


# -- the server


@pytest.fixture
def port(kits: dict[str, Kit]) -> Iterator[int]:
    with party_server(coordinate(kits)) as free:
        number = free.server_port
    with serving(kits["coordinator"], number) as url:
        assert url == f"http://127.0.0.1:{number}/"
        yield number


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def test_the_server_answers_this_machine_only(port: int, kits: dict[str, Kit]) -> None:
    assert ask(port, "/healthz") == (503, "it does not run\n")
    assert ask(port, "/readyz") == (503, "it does not run\n")
    with exclusive_use(kits["coordinator"]):
        assert ask(port, "/healthz") == (200, "ok\n")
        assert ask(port, "/readyz") == (200, "ready\n")
    assert json.loads(ask(port, "/document.json")[1])["party"] == "coordinator"
    assert "ffl_rounds_total 2" in ask(port, "/metrics")[1]
    assert EVIL not in ask(port, "/")[1]
    assert ask(port, "/etc/passwd")[0] == 404
    for path in ("/", "/metrics", "/healthz", "/document.json"):
        assert ask(port, path, host="evil.example") == (403, "This page is for this machine only.\n")


def test_a_damaged_file_is_named(port: int, kits: dict[str, Kit]) -> None:
    (kits["coordinator"].run / "timing.jsonl").write_text("{damaged\n")
    status, words = ask(port, "/metrics")
    assert status == 500
    assert "timing.jsonl' cannot be read" in words


def test_a_port_in_use_is_refused(port: int, kits: dict[str, Kit]) -> None:
    with pytest.raises(UserError, match=f"Cannot listen on port {port} .* choose another"):
        party_server(kits["coordinator"], port)


# -- the counter of refused messages


def test_refused_messages_are_counted_across_restarts() -> None:
    mailbox = Mailbox("f" * 16, ("aster", "birch"), agreement="a", largest=1000)
    for content in (b"no message", pack(Message("poll", "e" * 16)), "text", pack(Message("poll", "f" * 16))):
        mailbox.answer("aster", (), content, hold=0.0)
    assert [line.bad for line in mailbox.lines.values()] == [3, 0]  # the last one is in order
    later = Mailbox("f" * 16, ("aster", "birch"))
    later.lines["aster"].count_on({"up_bytes": 10, "down_bytes": 20, "refused": 3})
    later.lines["aster"].count_on({"up_bytes": 1, "down_bytes": 2})  # the status of an earlier version
    line = later.lines["aster"]
    assert (line.up, line.down, line.bad) == (11, 22, 3)
