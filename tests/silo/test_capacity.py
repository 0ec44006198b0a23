"""FLARE by itself serves 100 connections and holds 64 questions: both limits follow the number of sites."""

import subprocess
import sys

import pytest

pytest.importorskip("nvflare", reason="FLARE is not installed")

ASKED = 120


@pytest.mark.parametrize(("sites", "found"), [([], "100 64"), ([str(ASKED)], "120 120")], ids=["flare", "with room"])
def test_as_many_connections_and_held_questions_as_sites(sites: list[str], found: str) -> None:
    command = [sys.executable, "-m", "tests.silo.many_connections", str(ASKED), *sites]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == found, done.stderr


def test_a_coordinator_makes_room_for_its_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    from factorized_fl.silo.transport.flare import capacity, gate, process

    asked: list[int] = []
    monkeypatch.setattr(gate, "close", lambda: None)
    monkeypatch.setattr(capacity, "serve_sites", asked.append)
    process.adapt_flare(7)
    process.adapt_flare()  # a site
    assert asked == [7]
