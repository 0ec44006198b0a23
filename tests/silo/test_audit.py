"""The audit log: what each party sent, received, refused and decided, in a chain that no later change survives."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from factorized_fl.cli import app
from factorized_fl.core.errors import UserError
from factorized_fl.silo.agreement import Kit, write_kit
from factorized_fl.silo.audit import Audit, audit_path, verify
from factorized_fl.silo.messages import Message
from tests.silo.loopback import Loopback
from tests.silo.parties import kits_of, make_sites, trio_config, write_trio
from tests.silo.test_trust import Handler


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trio(tmp_path_factory.mktemp("trio"))


def kit_of(folder: Path) -> Kit:
    return kits_of(folder, trio_config())["aster"]


def entries(kit: Kit) -> list[dict]:
    return [json.loads(line) for line in audit_path(kit).read_text().splitlines()]


@settings(max_examples=30)
@given(st.lists(st.text(max_size=20), min_size=2, max_size=6), st.data())
def test_a_changed_line_breaks_the_chain(tmp_path_factory: pytest.TempPathFactory, words: list[str], data) -> None:
    kit = kit_of(tmp_path_factory.mktemp("kit"))
    audit = Audit(kit)
    for word in words:
        audit("noted", words=word)
    assert verify(kit).lines == len(words)
    lines = audit_path(kit).read_bytes().splitlines(keepends=True)
    place = data.draw(st.integers(0, len(lines) - 2))
    change = data.draw(st.sampled_from(["edit", "remove", "swap", "repeat"]))
    if change == "edit":
        lines[place] = lines[place].replace(b'"event": "noted"', b'"event": "Noted"')
    elif change == "remove":
        del lines[place]
    elif change == "swap":
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    else:
        lines.insert(place, lines[place])
    audit_path(kit).write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=r"Line \d+ of '.*audit.jsonl' breaks the chain"):
        verify(kit)


def test_the_chain_continues_after_a_restart_and_half_a_line(tmp_path: Path) -> None:
    kit = kit_of(tmp_path)
    with pytest.raises(UserError, match="aster has no audit log yet"):
        verify(kit)
    Audit(kit)("first")
    Audit(kit).message("sent", Message("round", "f" * 16, {"round": 1, "accuracy": 0.5}, b"abc"), to="birch")
    with audit_path(kit).open("ab") as file:
        file.write(b'{"number": 3, "ti')  # a crash
    with pytest.raises(UserError, match="Line 3 "):
        verify(kit)
    Audit(kit)("third")
    assert verify(kit).events == {"first": 1, "sent": 1, "third": 1}
    sent = entries(kit)[1]
    assert (sent["kind"], sent["round"], sent["to"], sent["bytes"]) == ("round", 1, "birch", 3)
    assert "accuracy" not in sent
    assert audit_path(kit).stat().st_mode & 0o077 == 0
    other = kit_of(tmp_path / "other")
    other.logs.mkdir()
    shutil.copy(audit_path(kit), audit_path(other))
    assert verify(other).last == verify(kit).last


def test_the_coordinators_log_names_what_each_site_sent_and_got(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config("fedavg", rounds=2))
    for kit in kits.values():
        write_kit(kit)
    sites = make_sites(kits, data)
    assert Loopback(kits, sites).run()
    lines = entries(kits["coordinator"])
    assert [line["event"] for line in lines].count("complete") == 2
    assert lines[-1]["event"] == "end"
    sent = [line for line in lines if line["event"] == "sent" and line["kind"] == "round"]
    assert {line["to"] for line in sent} == set(sites)
    assert len({line["digest"] for line in sent if line["round"] == 2}) == 1  # FedAvg sends the same to all
    received = [line for line in lines if line["event"] == "received" and "digest" in line]
    assert len({line["digest"] for line in received}) == 6
    done = CliRunner().invoke(app, ["federation", "audit", str(kits["coordinator"].path)])
    assert done.exit_code == 0
    assert f"coordinator of trio: {len(lines)} lines, the chain is unbroken (2 complete, 1 end, " in done.output


def test_a_site_that_always_refuses_is_set_aside(data: Path, tmp_path: Path) -> None:
    kits = kits_of(tmp_path, trio_config("fedavg", rounds=5), quorum=2)
    sites = make_sites(kits, data)
    parties = Loopback(kits, sites)
    asked: list[int] = []

    class Refusing(Handler):
        def answer(self, request: Message) -> Message:
            asked.append(request.whole("round"))
            return self.site.answer(Message("rubbish", request.federation, request.fields))

    parties.sites["aster"] = Refusing(sites["aster"])
    assert parties.run()
    assert asked == [1, 2, 3]
    assert "aster: quarantined after 3 refused rounds; `ffl federation readmit` asks it again" in parties.journal
    noted = [line for line in entries(kits["coordinator"]) if line["event"] == "noted"]
    assert [line["site"] for line in noted] == ["aster"] * 4
