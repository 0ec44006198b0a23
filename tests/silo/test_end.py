"""The end of a federation: sites finish alone, the coordinator names the sites that it waits for."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from factorized_fl.report.collect import collect
from factorized_fl.results.rundir import RunDirectory
from factorized_fl.results.schema import COORDINATOR
from factorized_fl.silo import mailbox, supervise
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.finish import finish, has_ended, remember_end
from factorized_fl.silo.journal import Journal, journal_path
from factorized_fl.silo.messages import Message
from factorized_fl.silo.settings import Settings, save_settings
from factorized_fl.silo.site import Site
from factorized_fl.silo.site_export import export_now
from factorized_fl.silo.status import is_done, read_status, sites_table, status_lines, write_status
from tests.silo.loopback import Loopback
from tests.silo.parties import NAMES, kits_of, trio_config, write_trio
from tests.silo.test_agreement import agent_of
from tests.silo.test_kits import ffl
from tests.silo.test_trust import round_request

pytest.importorskip("nvflare")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


def written(kit: Kit) -> Kit:
    """The kit with its agreement on disk, for other processes."""
    write_kit(kit)
    return kit


class Dying:
    """A trainer whose machine fails at its first request."""

    def ask(self, request: Message, meanwhile: Callable[[], None]) -> Message:
        raise KeyboardInterrupt

    def close(self) -> None:
        raise AssertionError


def test_a_site_that_died_after_the_end_makes_its_model_without_a_coordinator(data: Path, tmp_path: Path) -> None:
    kit = written(kits_of(tmp_path, trio_config(rounds=1))["aster"])
    Site(kit, data / "aster", print, report=False).answer(round_request(1))
    save_settings(kit, Settings(data / "aster"))
    assert not has_ended(kit)
    with pytest.raises(KeyboardInterrupt):
        finish(kit, Journal(kit), Dying())
    assert has_ended(kit)
    said: list[str] = []
    assert supervise.supervise(kit, said.append)
    assert is_done(kit)
    assert RunDirectory(kit.alone).summary() is not None
    assert "done: the model is in model/" in journal_path(kit).read_text()
    assert not any("reached" in line for line in said)


def test_the_end_of_another_federation_does_not_count(tmp_path: Path) -> None:
    old, new = (kits_of(tmp_path / mark[0], trio_config(), id=mark)["aster"] for mark in ("e" * 16, "f" * 16))
    remember_end(old)
    shutil.copy(old.path / "ended", new.path / "ended")
    assert has_ended(old)
    assert not has_ended(new)


def test_the_baseline_trains_as_many_rounds_as_the_site_took_part_in(data: Path, tmp_path: Path) -> None:
    kit = written(kits_of(tmp_path, trio_config(rounds=5))["aster"])
    site = Site(kit, data / "aster", print, report=False)
    site.answer(round_request(1))
    site.answer(round_request(4))
    site.answer(Message("test", kit.agreement.id, {"request": "test-5", "round": 5}))
    site.finish()
    assert "2 of 5 rounds of 1 epochs" in (kit.model / "README.md").read_text()
    assert RunDirectory(kit.alone).config().rounds == 2
    assert len(RunDirectory(kit.alone).metrics()) == 2
    export_now(kit, data / "aster")
    assert "2 of 5 rounds of 1 epochs" in (kit.model / "README.md").read_text()
    (run,) = collect([kit.path])["runs"]
    assert run["verdicts"]
    assert "trained differently" not in run["baseline"]


def ask(parties: Loopback, site: str) -> str:
    return parties.ask(site, Message("ready", parties.kit.agreement.id, {"train": 5})).kind


def rows(parties: Loopback) -> list[tuple[str, bool, str]]:
    status = read_status(parties.kits[COORDINATOR])
    assert status is not None
    return [(site["name"], site["connected"], site["doing"]) for site in status["sites"]]


def test_a_finished_coordinator_names_the_sites_that_do_not_know_of_the_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_SOON", 0.0)
    kits = kits_of(tmp_path, trio_config(rounds=1), deadline=1.0)
    sites = {name: Site(kits[name], data / name, print, report=False) for name in ("aster", "birch")}
    parties = Loopback(kits, sites)
    assert parties.run()
    assert ask(parties, "birch") == "end"
    parties.coordinator.farewell(0.5)
    assert "waiting up to 0 s for cedar to learn of the end" in parties.journal
    assert (
        parties.journal[-1] == "cedar did not learn of the end: run `ffl serve` again to notify sites that join again"
    )
    told, untold = "knows the end", "does not know the end yet"
    assert rows(parties) == [("aster", False, told), ("birch", False, told), ("cedar", False, untold)]

    again = Loopback(kits, {})
    assert again.run()
    assert ask(again, "cedar") == "end"
    again.coordinator.farewell(60)  # aster and birch, who know, are not waited for
    assert not any("learn of the end" in line for line in again.journal)
    assert rows(again) == [(name, False, told) for name in NAMES]

    third = Loopback(kits, {})
    assert third.run()
    third.coordinator.farewell(0.5)  # all know, but an answer may have been lost
    assert third.journal == [
        "continuing after round 1",
        "waiting up to 0 s for repeated questions: all sites know of the end",
    ]
    assert rows(third) == [(name, False, told) for name in NAMES]


@pytest.mark.parametrize(("kind", "words"), [("exclude", "leave aster out of"), ("readmit", "ask aster for")])
def test_requests_to_a_complete_federation_are_refused(
    kind: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kit = written(kits_of(tmp_path, trio_config())[COORDINATOR])
    directory = RunDirectory(kit.run)
    directory.path.mkdir()
    directory.save_summary({"clients": []})
    code, err = ffl(capsys, "federation", kind, kit.path, "aster")
    assert code == 2
    assert f"The federation trio is complete: nothing is left to {words}." in " ".join(err.split())
    assert not (kit.path / "control.json").exists()


def test_the_status_of_a_killed_coordinator_shows_no_connections(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())[COORDINATOR]
    row = {"name": "aster", "connected": True, "doing": "waiting", "strikes": 0, "accuracy": None}
    row |= {"up_bytes": 0, "down_bytes": 0}
    for age, word in ((0, "yes"), (60, "no")):
        write_status(kit, "mixing", {"round": 1, "rounds": 3, "sites": [row], "updated": time.time() - age})
        table = sites_table(kit)
        assert table is not None
        assert [row[1].plain for row in table.rows] == [word]
    write_status(kit, "mixing", {"round": 1, "rounds": 3, "sites": [row]})
    table = sites_table(kit, runs=False)
    assert table is not None
    assert [row[1].plain for row in table.rows] == ["no"]


class Slow:
    """A trainer at work for so long that the status from its start is stale."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.seen: list[str] = []

    def ask(self, request: Message, meanwhile: Callable[[], None]) -> Message:
        old = json.loads(self.kit.status.read_text())
        self.kit.status.write_text(json.dumps({**old, "updated": old["updated"] - 60}))
        meanwhile()
        self.seen = status_lines(self.kit)
        return Message("done", self.kit.agreement.id)

    def close(self) -> None:
        pass


def test_a_site_with_a_long_request_is_shown_as_running(tmp_path: Path) -> None:
    kit = kits_of(tmp_path, trio_config())["aster"]
    trainer = Slow(kit)
    finish(kit, Journal(kit), trainer)
    assert trainer.seen == ["aster of trio: making the model"]
    agent = agent_of(kit, lambda news: Message("wait", news.federation))
    trainer.ask(Message("round", kit.agreement.id), lambda: agent.alive("round-7"))
    assert trainer.seen == ["aster of trio: at work on round-7"]
